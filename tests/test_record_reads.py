"""A page never shows an old record's number: which records a chapter reads, and that it is executed
again when one of them changes.
"""

from pathlib import Path

import nbformat
import pandas as pd
import pytest

from benchmarks.shared import provenance
from conftest import ROOT
from ed_lib import records
from tools import book, notebooks, record_reads

SECONDS = {"seconds": 1.0, "q1": 1.0, "q3": 1.0, "n": 1}


def write(benchmark, machine, rows, **facts):
    made = {"benchmark": benchmark, "machine": machine, "device": "a GPU", "date": "2026-11-28"}
    provenance.write(pd.DataFrame(rows), made | facts, records.ROOT / "records")


def record(benchmark, machine, number):
    write(benchmark, machine, [{"table": "a", **SECONDS, "found": number}])


def cells(*, device="a GPU", day="2026-11-28", **printed):
    """Writes what GPU cells printed, {chapter_cell: text}."""
    rows = []
    for name, text in printed.items():
        chapter, cell = name.split("_")
        rows.append({"table": chapter, "cell": cell, "code": "c0de"} | SECONDS | {"printed": text})
    write("cells", "gpu", rows, device=device, dates={row["table"]: day for row in rows})


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A repository with records, and with the package."""
    for module in (records, notebooks, book):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "ed_lib").symlink_to(ROOT / "ed_lib")
    for benchmark, machine in (("ed", "cpu"), ("ed", "gpu"), ("lstm", "cpu"), ("lstm", "gpu")):
        record(benchmark, machine, 8.38)
    cells(mine_c0ffee="1 ms", other_beef="2 ms", named_f00d="3 ms")
    return tmp_path


READS = {
    'records.of("ed", "cpu")': {("ed", "cpu")},
    'x = records.row(records.by_machine("ed")["cpu"], a=1)': {("ed", "*")},
    'for name in ("ed", "lstm"):\n    records.of(name, MACHINE)': {("*", "*")},
    'records.of(machine="cpu", benchmark="ed")': {("*", "*")},
    '"records.of(1, 2)"; of("ed", "cpu"); records.rows(record, a="b")': set(),
}


@pytest.mark.parametrize("source", READS)
def test_the_records_that_code_reads_are_found(source):
    assert record_reads.read_by(source) == READS[source]


def test_no_chapter_reads_a_record_in_a_manner_that_is_not_seen(monkeypatch):
    monkeypatch.setattr(provenance, "code_hash", lambda *of: "not here")
    seen = {}
    for path in notebooks.chapters():
        take = lambda cells, modules, ids, path=path: seen.update({path: [*cells, *modules]}) or ""  # noqa: E731
        monkeypatch.setattr(record_reads, "contents", take)
        notebooks.fingerprint(notebooks.read(ROOT / path))
    for path, sources in seen.items():
        assert sources, path
        for source in sources:
            for hidden in ("ed_lib.records import", "ed_lib.records as", "import records as"):
                assert hidden not in source, f"{path}: {hidden}"
            read = {benchmark for benchmark, _ in record_reads.read_by(source)}
            assert "*" not in read, f"{path} reads a record that no literal names"


CHANGES = {  # of records: whether they are what the chapter below reads
    lambda: record("ed", "cpu", 9.99): True,
    lambda: record("ed", "gpu", 9.99): False,
    lambda: record("lstm", "gpu", 9.99): True,
    lambda: record("lstm", "new", 8.38): True,
    lambda: record("deep", "cpu", 8.38): False,
    lambda: cells(mine_c0ffee="9 ms", other_beef="2 ms", named_f00d="3 ms"): True,
    lambda: cells(mine_c0ffee="1 ms", other_beef="9 ms", named_f00d="3 ms"): False,
    lambda: cells(mine_c0ffee="1 ms", other_beef="2 ms", named_f00d="9 ms"): True,
    lambda: cells(mine_c0ffee="1 ms", named_f00d="3 ms", more_2="new"): False,
    lambda: cells(mine_c0ffee="1 ms", named_f00d="3 ms", device="H200"): True,
    lambda: cells(mine_c0ffee="1 ms", named_f00d="3 ms", day="2026-12-01"): True,
}
CHAPTER = """from ed_lib import records
ours = records.of("ed", "cpu"), records.by_machine("lstm"), records.of("cells", "gpu")
other = records.row(ours[2], table="named")"""


@pytest.mark.parametrize("number, change", [*enumerate(CHANGES)])
def test_a_chapter_is_of_the_records_that_it_reads_and_of_no_others(place, number, change):
    cell = nbformat.v4.new_code_cell(CHAPTER, id="c0ffee")
    nb = nbformat.v4.new_notebook(cells=[cell])
    before = notebooks.fingerprint(nb)
    assert notebooks.fingerprint(nb) == before
    change()
    assert (notebooks.fingerprint(nb) != before) == CHANGES[change], number


SHOWN = """from pathlib import Path
from ed_lib import records
records.ROOT = Path({place!r})
number = records.row(records.of("ed", "cpu"), table="a")["found"]
print(number, "GiB")"""
CLAIM = 'assert number < 10, "less than ten GiB"'


def test_a_book_shows_the_new_number_or_a_claim_names_its_sentence(place, monkeypatch):
    path = Path("chapter.ipynb")
    for name, folder in (("EXECUTED", "executed"), ("SOURCE", "source")):
        monkeypatch.setattr(book, name, place / folder)
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Title")])
    sources = SHOWN.format(place=str(place)), CLAIM
    nb.cells += map(nbformat.v4.new_code_cell, sources)
    notebooks.write(nb, place / path)
    assert book.prepare(path).startswith("executed")
    assert book.prepare(path).startswith("unchanged")
    assert "8.38 GiB" in (book.SOURCE / path).read_text()
    record("ed", "cpu", 9.99)
    assert book.prepare(path).startswith("executed")
    page = (book.SOURCE / path).read_text()
    assert "9.99 GiB" in page and "8.38" not in page
    record("ed", "cpu", 10.5)
    with pytest.raises(SystemExit, match="(?s)a cell failed.*less than ten GiB"):
        book.prepare(path)
