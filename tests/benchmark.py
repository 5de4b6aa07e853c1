"""What the tests of the benchmarks share."""

from benchmarks import old_harness as harness
from benchmarks import old_records as records


def measured(benchmark, size, folder, device="cpu", wanted=()):
    """The record of the parts of a benchmark, read back from ``folder``; each part must have ended well."""
    found = harness.run(benchmark, device, folder, size=size, wanted=wanted)
    assert set(found.values()) == {"done"}, found
    (record,) = records.load(benchmark.__name__.rpartition(".")[2], folder)
    assert list(record.parameters["parts"]) == sorted(found)  # JSON's keys are sorted
    return record
