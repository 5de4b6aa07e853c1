"""The benchmark at a tiny size: every way is there, and what runs is what is meant."""

import json

import pytest

from benchmarks import smaller
from ed_lib.precision import int8

WAYS = {"float32", "float32, trained on", "bfloat16", "float16", "int8", "student, alone", "student, taught"}
WAYS |= {"student, taught without labels"}
WAYS |= {f"int{bits} weights" for bits in (8, 4, 3, 2)} | {"int4, trained", "int2, trained"}
WAYS |= {f"pruned {share}%, once" for share in (50, 80, 90, 95, 98)} | {"pruned 90%, gradually, int4"}
WAYS |= {f"pruned {share}%, {how}" for share in (90, 95, 98) for how in ("once, trained on", "gradually")}
WAYS |= {
    f"{share}% of filters cut, {how}"
    for share in (50, 75)
    for how in ("trained on", "int8", "int4", "from the start")
}


@pytest.fixture(scope="module")
def rows():
    return [*smaller.smaller(smaller.TINY), *smaller.distillation(smaller.TINY)]


def test_every_way_is_there_once_for_each_form_and_batch(rows):
    found = [row for row in rows if row.case["table"] == "smaller models"]
    keys = [(row.case["way"], row.case["runs as"], row.case["batch"]) for row in found]
    assert len(set(keys)) == len(keys)
    ways = {way for way, _, _ in keys}
    assert ways == WAYS and len(ways) == 34
    forms = {(way, how) for way, how, _ in keys}
    assert len(keys) == 2 * len(forms) and ("pruned 90%, gradually", "float32, CSR") in forms
    assert (("int8", "int8") in forms) == int8.available() and ("int8", "float32, fake") in forms
    assert all(row.case["images"] == 60 and row.completion.median > 0 for row in found)
    json.dumps([row.results for row in rows])


def test_what_runs_is_what_is_meant(rows):
    for row in rows:
        if row.case["table"] == "smaller models":
            assert row.error < (0.02 if row.case["runs as"] == "int8" else 1e-5), row.case


@pytest.mark.oracle
def test_bytes_and_accuracies_are_for_each_seed(rows):
    bytes_of = {row.case.get("way"): row.results.get("bytes") for row in rows}
    assert bytes_of["float32"] == bytes_of["float32, trained on"] == [516_272] * 2
    assert bytes_of["bfloat16"] == bytes_of["float16"] == [258_136] * 2
    # Weights, a scale for each of 208 filters, biases; five inputs' scales and zero points.
    assert bytes_of["int8 weights"] == [128_860 + 8 * 208] * 2
    assert bytes_of["int8"] == [128_860 + 8 * 208 + 4 * 5] * 2
    assert all(b <= 128_860 / 2 + 8 * 208 + 2 for b in bytes_of["int4 weights"] + bytes_of["int4, trained"])
    assert bytes_of["student, alone"] == [4 * (784 * 32 + 32 + 330)] * 2
    assert bytes_of["50% of filters cut, trained on"] == [4 * (100 + 6275 + 25_664 + 650)] * 2
    for a in (90, 95, 98):
        once, later = bytes_of[f"pruned {a}%, once"], bytes_of[f"pruned {a}%, gradually"]
        assert all(abs(p - q) < 0.1 * p for p, q in zip(once, later, strict=True)) and once[0] < 70_000
    for row in rows:
        assert len(row.results["accuracy"]) == 2 and all(0 <= a <= 1 for a in row.results["accuracy"])


def test_the_student_of_few_images(rows):
    found = [row for row in rows if row.case["table"] == "distillation"]
    assert [(row.case["images"], row.case["temperature"]) for row in found] == [(30, 0), (30, 2.0)]
    assert all(row.completion.n == 2 for row in found)
