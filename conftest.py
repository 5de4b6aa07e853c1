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

# The files that take longest, the longest first, as a run's summary names them
LONG = """test_pages test_launcher your_own_step test_calculator_fields test_benchmarks
    test_page_controls test_hero error_diffusion when_it_does_not_fit smaller_models
    mixed_precision when_a_device_dies model_parallel how_few_bits one_token_at_a_time
    amp_in_practice declared_layouts four_bits asynchronous training_in_eight_bits
    data_parallel splitting_the_work ten_thousand_devices test_sharded ed_on_many_devices
    test_calculators one_step test_ed_on_gpu test_book fast_forward test_own_steps
    on_a_cpu relatives why_it_learns language_model every_layer_at_once cudnn_weights
    test_pipeline breaking_the_chain test_project""".split()
SHOWN = 40  # of them, in the summary

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
    """Long files come first, so that none of the processes ends long after the others."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_terminal_summary(terminalreporter):
    """The time of each part, and of the longest files, in seconds of work; with three processes, a
    third of their sum has passed.
    """
    parts = Counter()
    files = Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if hasattr(report, "duration"):
            file = Path(report.nodeid.partition("::")[0])
            place = file.parts
            part = "tests" if len(place) == 2 else "/".join(place[:2])  # tests/ed, book/lstm
            parts[part] += report.duration
            files[file.stem] += report.duration
    terminalreporter.write_line(f"Time of each part: {told(parts.most_common())}")
    if len(files) > SHOWN:
        terminalreporter.write_line(f"Time of the longest files: {told(files.most_common(SHOWN))}")


def told(times):
    """Of [(what, seconds), …]."""
    return ", ".join(f"{what} {seconds:.0f} s" for what, seconds in times)


@pytest.fixture(params=["numpy", "torch", pytest.param("cupy", marks=pytest.mark.gpu)])
def backend(request):
    """Each array library in turn, as the keywords of EDNetwork; CuPy only where there is a GPU."""
    if request.param == "cupy" and not arrays.gpu_count("cupy"):
        pytest.skip("CuPy needs a GPU, and this machine has none")
    return {"backend": request.param, "device": "cuda" if request.param == "cupy" else "cpu"}


@pytest.fixture(autouse=True)
def same_random_numbers():
    """A layer made without a generator has the same weights in any order of the tests."""
    import torch  # here: not every process that reads this file needs it

    torch.manual_seed(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
