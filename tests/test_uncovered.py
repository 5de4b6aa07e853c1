"""The list of sentences that no claim covers: on a made-up chapter, on all chapters, and what may be
exempt from it.
"""

import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools import notebooks, timed_cells, uncovered
from tools.claims import Chapter
from tools.notebooks import ROOT
from tools.sentences import sentences
from tools.statements import compares, numbers

FIRST = """# A chapter

**Is it faster?**

Our loop takes 12 ms. On an EPYC it is 3.5 times as fast as the listing.

<div class="admonition note">
<p class="admonition-title">Before you start</p>

- **Time:** 20 minutes, or more.

</div>

## Sums

| p | more |
|---|---|
| 2 | 7.5 |

A ring of `p` devices sends $2(p - 1)/p$ bytes. It sends 129,068 numbers, a quarter less than a tree
does. On 64 images the tree wins. Take 64 images, which is more. The batch has 4,096 images.
Halving is slower than doubling by a third:"""
BOX = """The ring is twice as fast (quartiles and all).

<div class="admonition source">
<p class="admonition-title">The source says · we measured</p>

[Doe (2020)](https://example.org "cite:doe2020") found it 175 times as fast. It had 8 devices, the
fastest of their time.

**We measured** 39 times.

</div>

minGRU ends lower. Adam et al. (2021) know no such thing; the largest number of them is no statement.

## Exercises

It is 9.5 times as large."""
CELLS = [
    new_markdown_cell(FIRST, id="first"),
    new_code_cell("batch = 4096\ntook = timing.compare(calls)", id="timed"),
    new_code_cell("print(took)", id="shown"),
    new_markdown_cell(BOX, id="box"),
    new_code_cell(
        "%%needs SICK\n"
        "assert 3.45 < ratio < 3.55, 'ahead'\n"
        "assert sent == 129_068 and 0.74 < sent / tree < 0.76, 'a ring sends a quarter less'\n"
        "assert low < loss['minGRU'], 'the minGRU ends lower'",
        id="claim",
        metadata={"tags": ["claim"]},
    ),
]
LISTED = [  # of FIRST and BOX
    "[first] Our loop takes 12 ms.",
    "live [first] On 64 images the tree wins.",
    "live [first] Halving is slower than doubling by a third:",
    "live [box] The ring is twice as fast (quartiles and all).",
    "[box] **We measured** 39 times.",
]


@pytest.fixture(scope="module")
def made():
    return new_notebook(cells=CELLS)


@pytest.fixture(scope="module")
def chapters():
    """{name: Chapter} of the book."""
    return {path.stem: Chapter(notebooks.read(ROOT / path)) for path in notebooks.chapters()}


def test_a_chapter_lists_what_states_something_and_has_no_claim_and_nothing_else(made):
    first, *lines = uncovered.report(made, exempt={})
    assert [line.strip() for line in lines] == LISTED
    assert first.endswith("5 listed (3 live)")
    _, *lines = uncovered.report(made, exempt={"Our loop": "as an example"})
    assert [line.strip() for line in lines] == LISTED[1:]


def test_prose_is_cut_into_its_sentences_and_nothing_else_is_prose(made):
    found = [one.text for one in sentences(made)]
    assert found[0] == "**Is it faster?**" and "minGRU ends lower." in found
    assert "A ring of ∎ devices sends ∎ bytes." in found
    assert not any(re.search("minutes|7.5|Exercise|9.5", text) for text in found)
    assert sum("et al." in text for text in found) == 1


@pytest.mark.parametrize("text, wanted", [
    ("two thirds, a seventh", {2 / 3, 1 / 7}),
    ("12,800 images in 6.3 ms", {12800.0, 6.3}),
    ("twice as long, or eight times", {2.0, 8.0}),
    ("float16 and exercise 2 of Doe (2020), the second half", set()),
])  # fmt: skip
def test_numbers_are_found_in_digits_and_in_words_and_not_in_names(text, wanted):
    assert {number.value for number in numbers(text)} == wanted


@pytest.mark.parametrize("text, wanted", [
    ("It is faster than the listing.", True),
    ("The ring falls behind.", True),
    ("It takes no more than a third.", True),
    ("With a larger batch it ends.", False),
    ("At most one queues up behind, and nothing more.", False),
])  # fmt: skip
def test_a_comparison_is_told_from_what_looks_like_one(text, wanted):
    assert compares(text) == wanted


@pytest.mark.parametrize("code, live", [
    ("print(timing.measure(f))", True),
    ("print(timing.tell(3e-3))", False),
    ("print(took['loop'])", True),
    ("for took in range(3):\n    print(took)", False),
    ("took = 1\nprint(took)", False),
    ("records.row(made), took", False),
    ("def clock():\n    return time.perf_counter()", False),
])  # fmt: skip
def test_a_cell_is_live_if_it_shows_a_time_that_is_measured_now(code, live):
    cells = [new_code_cell("took = timing.compare(calls)"), new_code_cell(code)]
    assert (cells[1].id in timed_cells.live(new_notebook(cells=cells))) == live


def test_a_cell_is_live_too_if_another_process_measures_for_it():
    writes = "%%writefile {folder}/ranks.py\ndef took():\n    return time.perf_counter()"
    cells = [new_code_cell(writes), new_code_cell("import ranks\nprint(launch(ranks.took, 2))")]
    assert timed_cells.live(new_notebook(cells=cells)) == {cells[1].id}


def test_every_chapter_has_its_list(chapters, capsys):
    uncovered.main([])
    told = re.findall(
        r"^(book/\S+): (\d+) sentences, (\d+) state something, (\d+) covered, (\d+) listed",
        capsys.readouterr().out,
        re.M,
    )
    assert [path for path, *_ in told] == [path.as_posix() for path in notebooks.chapters()]
    for path, *counts in told:
        total, stating, covered, listed = map(int, counts)
        assert total > stating >= covered > 0 and covered + listed <= stating, path


def test_an_exemption_has_a_reason_and_its_sentence_and_a_page_at_most_two(chapters):
    assert uncovered.faults(uncovered.exemptions(), chapters) == []


def test_what_is_wrong_with_an_exemption_is_told(made):
    here = {"made": Chapter(made)}
    three = {"Our loop": "why", "On 64 images": " ", "The batch has": "it needs none"}
    assert uncovered.faults({"made": three, "other": {}}, here) == [
        "made: 3 exemptions; wanted at most 2",
        "made: no reason beside 'On 64 images'",
        "made: no sentence that would be listed begins with 'The batch has'",
        "other: no such chapter",
    ]


def test_a_path_that_is_no_chapter_is_one_line():
    with pytest.raises(SystemExit, match="No such file .*book/ed/none.ipynb"):
        uncovered.main(["book/ed/none.ipynb"])
