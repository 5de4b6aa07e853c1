"""SICK's pairs: read as published, split by what they say, not by their order."""

import os

import pytest

from ed_lib import published
from ed_lib.precision import sick

ROWS = [("1", "a dog", "a cat", "3.0", "NEUTRAL"), ("4", "it rains", "it pours", "4.5", "ENTAILMENT"),
        ("9", "up", "down", "2.0", "CONTRADICTION")]  # fmt: skip


def test_pairs_are_the_files_and_their_split_is_not_by_their_order(monkeypatch, tmp_path):
    def load(rows):
        file = tmp_path / "SICK.txt"
        file.write_text("\n".join(map("\t".join, [("pair_ID", "", "", "", ""), *rows])) + "\n")
        monkeypatch.setattr(published, "file", lambda *args: file)
        return sick.load()

    train, held_out = load(ROWS)
    found = {
        (*pair,)
        for part in (train, held_out)
        for pair in zip(part.first, part.second, part.relatedness, part.labels, strict=True)
    }
    assert found == {(a, b, float(r), sick.LABELS.index(label)) for _, a, b, r, label in ROWS}
    assert set(load(ROWS[::-1])[1].first) == set(held_out.first)


def test_about_a_fifth_is_held_out():
    pairs = [(str(n), str(n + 1)) for n in range(10_000)]
    found = [sick.is_held_out(*pair) for pair in pairs]
    assert 0.18 < sum(found) / len(found) < 0.22
    assert found == [sick.is_held_out(*pair[::-1]) for pair in pairs], "a pair turned round stays with it"


@pytest.mark.oracle
@pytest.mark.skipif(not os.environ.get("ED_DATA"), reason="no data")
def test_sick_is_as_published():
    """The counts of SemEval-2014's 9,927 pairs; no pair stands in both parts."""
    train, held_out = sick.load()
    pairs = [set(zip(part.first, part.second, strict=True)) for part in (train, held_out)]
    counts = [sum(part.labels.count(k) for part in (train, held_out)) for k in range(3)]
    assert counts == [1459, 2857, 5611] and len(train) + len(held_out) == 9927
    assert not pairs[0] & pairs[1]
