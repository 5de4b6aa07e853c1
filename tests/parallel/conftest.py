"""No test leaves a process behind: asked after each module, and where a test asks for it."""

import contextlib

import psutil
import pytest

from ed_lib.parallel import launcher

if launcher.FORKS:  # what ranks would all import, for seconds, the server that forks them has
    TESTS = "ranks test_checkpoints test_pipeline test_replica test_sharded test_launcher"
    TESTS = f"{TESTS} test_resuming".split()
    TORCHS = [f"torch.{name}" for name in ("_dynamo", "distributed.fsdp", "distributed.optim")]
    launcher.CONTEXT.set_forkserver_preload(TORCHS + [f"tests.parallel.{name}" for name in TESTS])


def check():
    before = started()
    yield
    left = started() - before
    assert not left, left


nothing_is_left_by_a_module = pytest.fixture(autouse=True, scope="module")(check)
nothing_is_left = pytest.fixture(check)


def started():
    """The processes that this one has started, without the two helpers that multiprocessing
    keeps.
    """
    found = set()
    helpers = psutil.Process().children()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            command = " ".join(child.cmdline())  # a fork of the server has the server's
            if not (
                child in helpers and ("resource_tracker" in command or "forkserver" in command)
            ):
                found.add(child)
    return found
