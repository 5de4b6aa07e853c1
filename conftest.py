"""What the tests of the package, of the notebooks and of the pages share."""

import itertools
import os
from collections import Counter
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from ed_lib import arrays
from tools.usage_errors import pytest_runtest_call  # noqa: F401, a hook

ROOT = Path(__file__).resolve().parent

LONG = """test_pages test_benchmarks amp_in_practice mixed_precision language_model test_sharded
    training_in_eight_bits why_it_learns test_checkpoints when_it_does_not_fit
    test_launcher""".split()

# The same examples on every run, and no deadline, since a machine may be busy.
hypothesis.settings.register_profile("book", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("book")
if not arrays.gpu_count():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton's kernels run in its interpreter
os.environ.setdefault("ED_CEILINGS", str(ROOT / "_build" / "ceilings.json"))  # not the user's
# One short turn for what is timed: what it says is not compared.
os.environ.setdefault("ED_QUICK", "1")
os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bars inside notebooks that nobody watches


def pytest_ignore_collect(collection_path):
    """Leaves drafts of chapters alone; one that CHAPTER names is tested."""
    return left_alone(collection_path) or None


def left_alone(path):
    if path.suffix != ".ipynb" or os.environ.get("CHAPTER"):
        return False
    from tools import notebooks

    return path in {notebooks.ROOT / draft for draft in notebooks.drafts()}


def pytest_collection_modifyitems(items):
    """Long files come first, so that of two processes neither ends long after the other."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_terminal_summary(terminalreporter):
    """The time of each part, in seconds of work; with two processes, half of their sum has
    passed.
    """
    seconds = Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if hasattr(report, "duration"):
            place = report.nodeid.partition("::")[0].split("/")
            part = "tests" if len(place) == 2 else "/".join(place[:2])  # tests/ed, book/lstm
            seconds[part] += report.duration
    parts = ", ".join(f"{part} {total:.0f} s" for part, total in seconds.most_common())
    terminalreporter.write_line(f"Time of each part: {parts}")


@pytest.fixture(params=["numpy", "torch", pytest.param("cupy", marks=pytest.mark.gpu)])
def backend(request):
    """Each array library in turn, as the keywords of EDNetwork; CuPy only where there is a GPU."""
    if request.param == "cupy" and not arrays.gpu_count("cupy"):
        pytest.skip("CuPy needs a GPU, and this machine has none")
    return {"backend": request.param, "device": "cuda" if request.param == "cupy" else "cpu"}


@pytest.fixture
def rng():
    return np.random.default_rng(0)
