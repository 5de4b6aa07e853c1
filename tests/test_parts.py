"""A record made part by part: what is kept when a part fails, is killed, or was measured before."""

import math
import time
import types

import pytest

from benchmarks import __main__ as command
from benchmarks import harness
from ed_lib import gates, machine, records, roofline
from ed_lib.timing import Timing


class Fake:
    """A benchmark whose parts write a row each and count their calls; ``does`` replaces what a part does."""

    def __init__(self, *names):
        self.calls, self.does, self.roofs, self.folder = [], {}, [(1e9, 1e9)], None
        self.module = types.ModuleType("benchmarks.fake")
        self.module.TINY, self.module.prepare = "tiny", self.prepare
        self.names = names

    def ceilings(self):
        """The next of the roofs (bandwidth, rate), and the last of them as often as asked."""
        bandwidth, rate = self.roofs[0]
        del self.roofs[: len(self.roofs) > 1]
        return {"float32": roofline.Ceilings("m", "float32", bandwidth, rate)}

    def prepare(self, device, size=None):
        rows = harness.Table(self.ceilings())

        def part(name):
            def work():
                self.calls.append(name)
                time = len(self.calls)
                floor = rows.ceilings["float32"].floor(1000, 2000)
                case = {"table": name, "dtype": "float32"}
                rows.rows.append(records.Row(case, Timing(time, time, time, 3), None, 1000, 2000, floor))
                self.does.get(name, lambda: None)()

            return work

        return harness.Plan(rows, {name: part(name) for name in self.names}, {"size": size}, self.ceilings)

    def run(self, **options):
        return harness.run(self.module, "cpu", self.folder, **options)

    @property
    def record(self):
        (record,) = records.load("fake", self.folder)
        return record

    @property
    def rows(self):
        """{table: its one row's time}, which is the number of the call that wrote it."""
        rows = self.record.rows
        found = {row.case["table"]: row.completion.median for row in rows}
        assert len(found) == len(rows) and all(row.case["part"] == row.case["table"] for row in rows)
        return found


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Three parts; the repository's records are none, and the machine is quiet."""
    monkeypatch.setattr(records, "REPOSITORY", tmp_path / "repository")
    monkeypatch.setattr(gates, "wait_for_quiet", lambda: None)
    found = Fake("a", "b", "c")
    found.folder = tmp_path / "out"
    return found


def failing(kind=RuntimeError, text="no such kernel\nand more"):
    def work():
        raise kind(text)

    return work


@pytest.fixture
def code(monkeypatch):
    """A function that sets what the code's hash is."""
    return lambda text: monkeypatch.setattr(records, "code_hash", lambda benchmark: text)


def test_all_parts_make_one_record(fake, capsys):
    assert fake.run(size=7) == {"a": "done", "b": "done", "c": "done"}
    record = fake.record
    assert fake.rows == {"a": 1, "b": 2, "c": 3} and record.parameters["size"] == 7
    made, today = record.parameters["parts"], time.strftime("%Y-%m-%d")
    assert all(made[name]["code"] == records.code_hash("fake") for name in "abc")
    assert all(made[name]["seconds"] >= 0 and made[name]["date"] == today for name in "abc")
    (path,) = fake.folder.rglob("*.json")
    assert path == fake.folder / records.slug(machine.name("cpu")) / "fake.json"
    assert "fake, b: done" in capsys.readouterr().out


def test_a_part_that_raises_costs_only_its_own_rows(fake, capsys):
    fake.does["b"] = failing()
    found = fake.run()
    assert found == {"a": "done", "b": "failed: RuntimeError: no such kernel", "c": "done"}
    assert fake.rows == {"a": 1, "c": 3} and set(fake.record.parameters["parts"]) == {"a", "c"}
    said = capsys.readouterr()
    assert "fake, b: failed: RuntimeError" in said.out and "and more" in said.err, "its traceback is shown"
    fake.does.clear()
    assert fake.run(resume=True) == {"a": "was done", "b": "done", "c": "was done"}
    assert fake.rows == {"a": 1, "c": 3, "b": 4}


def test_the_record_is_readable_after_every_part_also_when_a_later_one_is_killed(fake):
    seen = []
    fake.does["b"] = lambda: seen.append(fake.rows)
    fake.does["c"] = failing(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        fake.run()
    assert seen == [{"a": 1}] and fake.rows == {"a": 1, "b": 2}
    assert set(fake.record.parameters["parts"]) == {"a", "b"}
    fake.does.clear()
    assert fake.run(resume=True) == {"a": "was done", "b": "was done", "c": "done"}
    assert fake.rows == {"a": 1, "b": 2, "c": 4}


def test_resuming_leaves_out_what_the_same_code_has_done(fake):
    fake.run(wanted=["b"])
    before = fake.record
    assert fake.rows == {"b": 1}
    assert fake.run(resume=True) == {"a": "done", "b": "was done", "c": "done"}
    assert fake.calls == ["b", "a", "c"] and fake.rows == {"b": 1, "a": 2, "c": 3}
    assert fake.record.rows[0] == before.rows[0]
    assert fake.record.parameters["parts"]["b"] == before.parameters["parts"]["b"]
    whole = fake.record
    assert set(fake.run(resume=True).values()) == {"was done"}
    assert fake.record == whole and len(fake.calls) == 3


def test_resuming_repeats_what_other_code_did(fake, code):
    code("old")
    fake.run(wanted=["a", "b"])
    code("new")
    assert fake.run(resume=True, wanted=["a"]) == {"a": "done"}
    assert fake.rows == {"a": 3}, "b is of other code"
    assert fake.run(resume=True) == {"a": "was done", "b": "done", "c": "done"}
    assert fake.rows == {"a": 3, "b": 4, "c": 5}
    assert {how["code"] for how in fake.record.parameters["parts"].values()} == {"new"}


def test_a_rehearsal_is_not_resumed(fake):
    fake.run(size=(1, 2))
    assert set(fake.run(size=(3, 4), resume=True).values()) == {"done"}
    assert fake.rows == {"a": 4, "b": 5, "c": 6}
    assert set(fake.run(size=(3, 4), resume=True).values()) == {"was done"}, "a tuple is a list in JSON"


def test_without_resuming_all_is_measured_anew(fake):
    fake.run()
    assert set(fake.run().values()) == {"done"} and fake.rows == {"a": 4, "b": 5, "c": 6}


def test_resuming_begins_with_the_repositorys_record_where_there_is_no_other(fake):
    out, fake.folder = fake.folder, records.REPOSITORY / "records"
    fake.run(wanted=["a"])
    fake.folder = out
    assert fake.run(resume=True, wanted=["a", "b"]) == {"a": "was done", "b": "done"}
    assert fake.rows == {"a": 1, "b": 2}
    fake.folder = records.REPOSITORY / "records"
    assert fake.rows == {"a": 1}, "and leaves it as it was"


def test_a_record_without_parts_is_none_to_resume(fake):
    fake.run()
    old = fake.record
    del old.parameters["parts"]
    records.write(old, fake.folder)
    assert set(fake.run(resume=True).values()) == {"done"} and fake.rows == {"a": 4, "b": 5, "c": 6}


def test_no_part_begins_after_the_deadline(fake, monkeypatch):
    clock = [100.0]
    fake_time = types.SimpleNamespace(monotonic=lambda: clock[0], strftime=time.strftime)
    monkeypatch.setattr(harness, "time", fake_time)
    fake.does["b"] = lambda: clock.__setitem__(0, 200.0)
    assert fake.run(deadline=150) == {"a": "done", "b": "done", "c": "left: no time"}
    assert fake.calls == ["a", "b"] and fake.rows == {"a": 1, "b": 2}
    assert fake.run(deadline=150, resume=True) == {"a": "was done", "b": "was done", "c": "left: no time"}
    assert fake.rows == {"a": 1, "b": 2}
    assert fake.run(deadline=250, resume=True)["c"] == "done" and fake.rows == {"a": 1, "b": 2, "c": 3}


def test_ceilings_only_rise_on_resuming_and_floors_follow(fake):
    def floors():
        return {row.case["table"]: row.floor for row in fake.record.rows}

    fake.roofs = [(1e9, 1e9), (1e9, 4e9)]  # before and after; of 1000 bytes and 2000 operations
    fake.run(wanted=["a"])
    assert floors() == {"a": 1e-6}
    fake.roofs = [(5e8, 5e8)]  # the machine is busy
    fake.run(wanted=["b"], resume=True)
    assert floors() == {"a": 1e-6, "b": 1e-6}
    fake.roofs = [(4e9, 5e8), (2e9, 2e9)]
    fake.run(wanted=["c"], resume=True)
    assert floors() == {"a": 5e-7, "b": 5e-7, "c": 5e-7}
    assert [(roof.bandwidth, roof.rate) for roof in fake.record.ceilings] == [(4e9, 4e9)]


def test_rows_of_a_format_that_is_left_out_this_time_keep_their_ceiling(fake):
    """Such as one that a CPU, busy this time, only seems to imitate."""
    fake.run(wanted=["a"])
    record = fake.record
    record.rows[0].case["dtype"] = "bfloat16"
    record.ceilings.append(roofline.Ceilings("m", "bfloat16", 1e9, 8e9))
    records.write(record, fake.folder)
    assert fake.run(resume=True)["b"] == "done"
    assert [roof.dtype for roof in fake.record.ceilings] == ["float32", "bfloat16"]
    assert [row.floor for row in fake.record.rows] == [1e-6, 2e-6, 2e-6]


def test_unknown_parts_are_named(fake):
    with pytest.raises(ValueError, match=r"wanted names \['d', 'e'\]; fake has a, b, c"):
        fake.run(wanted=["a", "e", "d"])
    assert fake.calls == [] and not fake.folder.exists()


@pytest.fixture
def ended(fake, monkeypatch, capsys):
    """A function that runs the command line with the fake in place of a benchmark → the exit status."""
    monkeypatch.setattr(command.importlib, "import_module", lambda name: fake.module)

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            command.main(["ed", "--device", "cpu", "--out", str(fake.folder), *arguments])
        return end.value.code

    return run


def test_the_command_line_says_what_became_of_the_parts(fake, ended):
    assert ended("--seconds", "-1") == harness.LEFT and not fake.calls
    assert ended("--parts", "b", "--tiny") == 0
    assert fake.calls == ["b"] and fake.record.parameters["size"] == "tiny"
    fake.does["c"] = failing()
    assert ended("--resume", "--tiny") == 1 and fake.rows == {"b": 1, "a": 2}
    assert ended("--resume", "--tiny", "--seconds", "-1") == harness.LEFT
    fake.does.clear()
    assert ended("--resume", "--tiny") == 0 == ended("--resume", "--tiny", "--seconds", "-1")
    assert fake.calls == ["b", "a", "c", "c"]


def test_a_failed_part_counts_for_more_than_one_that_is_left(fake, ended, monkeypatch):
    found = {"a": "failed: x", "b": "left: no time"}
    monkeypatch.setattr(harness, "run", lambda *arguments, **options: found)
    assert ended() == 1


def test_a_benchmark_that_cannot_begin_is_a_failure(fake, ended):
    assert ended("--parts", "d") == 1 and not fake.calls
    fake.roofs = [(-1.0, math.nan)]
    assert ended() == 1 and not fake.calls


def test_a_part_measured_again_leaves_the_others_in_the_record(fake):
    fake.run()
    assert fake.run(wanted=["b"]) == {"b": "done"}
    assert fake.rows == {"a": 1, "b": 4, "c": 3} and set(fake.record.parameters["parts"]) == {"a", "b", "c"}
