"""`make chapter`: what it makes passes the tests of the chapters, as a draft and in the book."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import conftest
from conftest import ROOT
from tests import test_notebooks
from tools import front, new_chapter, notebooks, pages, repository

NAME, PATH = "parallel/my_question", Path("book/parallel/my_question.ipynb")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A copy of this repository with a new chapter in it: its folder."""
    root = tmp_path_factory.mktemp("copy")
    ask = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.check_output(ask, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    with pytest.MonkeyPatch.context() as patch:
        there(patch, root)
        new_chapter.main(NAME)
    return root


def there(patch, root):
    for module in (new_chapter, notebooks, repository, front, test_notebooks):
        patch.setattr(module, "ROOT", root)


@pytest.fixture
def copy(made, monkeypatch):
    there(monkeypatch, made)
    return made


def test_a_draft_passes_the_tests_of_manner(copy):
    nb = notebooks.read(copy / PATH)
    test_notebooks.test_the_file_is_canonical_executed_and_of_no_machine(PATH, nb)
    for passes in (
        test_notebooks.test_the_manner_of_a_chapter,
        test_notebooks.test_the_reading_time_that_a_chapter_states_is_the_one_counted,
        test_notebooks.test_code_cells_are_short_introduced_and_folded_alike_in_page_and_colab,
        test_notebooks.test_figures_are_a_drawing_a_picture_and_a_text_with_letters_for_a_phone,
        test_notebooks.test_exercises_fail_as_stubs_and_pass_with_their_solutions,
        test_notebooks.test_the_set_up_cell_is_that_of_the_original,
        test_notebooks.test_every_claim_names_its_sentence,
    ):
        passes(nb)


@pytest.mark.slow
def test_a_draft_passes_all_its_tests_and_nbval_when_it_is_named(copy):
    """As `make test CHAPTER=...` runs them."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "my_question"]
    command += ["--nbval-lax", "--nbval-current-env"]
    ran = subprocess.run(
        [*command, "tests/test_notebooks.py", "tests/test_exercises.py", PATH],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "CHAPTER": str(PATH)},
        capture_output=True,
        text=True,
    )
    cells = len(notebooks.code_cells(notebooks.read(copy / PATH)))
    exercises = 2
    passed = int(re.search(r"(\d+) passed", ran.stdout)[1])
    assert ran.returncode == 0 and passed > cells + exercises + 5, ran.stdout


def test_a_draft_is_let_be_while_no_table_lists_it_and_what_is_no_draft_is_not(copy):
    nb = notebooks.read(copy / PATH)
    assert notebooks.drafts() == [PATH] and PATH not in notebooks.chapters()
    assert notebooks.times_nothing(nb), "it waits for no quiet machine"
    assert conftest.left_alone(copy / PATH) and not conftest.left_alone(ROOT / "book/ed/ed.ipynb")
    test_notebooks.test_the_table_of_contents_holds_every_notebook_and_every_page_is_there_or_made()
    other = copy / PATH.with_name("other.ipynb")
    del nb.metadata["ed_lib"]["draft"]
    notebooks.write(nb, other)
    try:
        assert not conftest.left_alone(other)
        with pytest.raises(AssertionError, match="other"):
            test_notebooks.test_the_table_of_contents_holds_every_notebook_and_every_page_is_there_or_made()
    finally:
        other.unlink()


def test_a_line_in_the_table_of_contents_puts_it_into_the_book(copy, monkeypatch):
    monkeypatch.setenv("CHAPTER", str(PATH))
    assert notebooks.tested() == [PATH] and not conftest.left_alone(copy / PATH)
    monkeypatch.delenv("CHAPTER")
    before = (copy / "_toc.yml").read_text()
    line = "      - file: book/parallel/data_parallel\n"
    mine = f"      - file: {PATH.with_suffix('')}\n"
    (copy / "_toc.yml").write_text(before.replace(line, line + mine))
    try:
        assert PATH in notebooks.tested() == notebooks.chapters()
        assert notebooks.drafts() == [] and not conftest.left_alone(copy / PATH)
        nb = notebooks.execute(notebooks.read(copy / PATH), PATH)
        assert "draft" not in nb.metadata["ed_lib"], "it is one no more"
        monkeypatch.setattr(front, "by_part", lambda: pages.by_part(copy))
        assert f"\n- [My question]({PATH}) Which one question" in front.chapters()
    finally:
        (copy / "_toc.yml").write_text(before)


@pytest.mark.parametrize("name, said", [
    ("", "NAME is ''; wanted a part and a chapter like parallel/my_question, in small letters"),
    ("my_question", "wanted a part and a chapter like"),
    ("parallel/My-Question", "wanted a part and a chapter like"),
    ("../etc/passwd", "wanted a part and a chapter like"),
    ("start_here/my_question", "; a new one is a folder in book/"),
    ("appendix/my_question", "the parts are ed, "),
    ("parallel/data_parallel", "that name is taken by book/parallel/data_parallel.ipynb"),
    ("ed/one_step", "that name is taken by book/lstm/one_step.ipynb"),
    ("ed/forward_at_once", "that name is taken by book/ed/forward_at_once"),
])  # fmt: skip
def test_a_bad_name_and_one_that_is_taken_are_refused(name, said):
    with pytest.raises(ValueError, match="^NAME is ") as refused:
        new_chapter.path_of(name)
    assert said in str(refused.value)
    assert new_chapter.path_of(NAME) == PATH
