"""launch: what ranks return, and that nothing is left of them however they end."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from ed_lib.parallel import RankError, launch
from tests.parallel import ranks

ROOT = Path(__file__).resolve().parents[2]
LONG = 120.0  # seconds; a machine may be busy


def started():
    """The processes that this one has started, without the helper that multiprocessing keeps."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = {child.pid for child in started()}
    yield
    assert {child.pid for child in started()} <= before


def test_it_returns_what_each_rank_returned():
    found = launch(ranks.who, 3, "a", {"b": [1]}, timeout=LONG)
    assert [one[0] for one in found] == [0, 1, 2]
    for _, size, total, threads, pid, args in found:
        assert (size, float(total), threads, args) == (3, 6.0, 1, ("a", {"b": [1]}))
        assert pid != os.getpid()
    assert len({one[4] for one in found}) == 3


def test_one_rank_is_enough_and_arguments_are_copied():
    array, tensor = np.zeros(3), torch.zeros(300_000)  # more than a pipe holds
    assert (launch(ranks.change, 1, array, timeout=LONG)[0] == 1).all()
    (back,) = launch(partial(ranks.change, tensor), 1, timeout=LONG)
    assert (back == 1).all() and (array == 0).all() and (tensor == 0).all()


@pytest.mark.parametrize(
    "how, said",
    [
        ("raises", "KeyError: 'a word to find'"),
        ("leaves", "SystemExit: 3"),
        ("exits", "exited with code 3"),
        ("is killed", "SIGKILL"),
        ("returns what cannot be sent", "pickle"),
    ],
)
def test_a_rank_that_fails_is_named_and_the_others_end(how, said):
    for rank in (0, 1):
        start = time.monotonic()
        with pytest.raises(RankError, match=said) as caught:
            launch(ranks.misbehave, 2, how, rank, timeout=LONG)
        assert caught.value.rank == rank and f"rank {rank}" in str(caught.value)
        assert time.monotonic() - start < LONG  # not by its deadline
    assert len(launch(ranks.who, 2, timeout=LONG)) == 2  # and the next one works


def test_a_rank_that_hangs_is_ended_in_time_and_named_with_the_place():
    start = time.monotonic()
    with pytest.raises(RankError, match="did not end within 20 s") as caught:
        launch(ranks.misbehave, 2, "sleeps", 1, timeout=20.0)
    assert time.monotonic() - start < 22
    assert caught.value.rank == 1 and "in misbehave" in str(caught.value)
    with pytest.raises(RankError, match="in spin"):
        launch(ranks.spin, 1, timeout=15.0)


def test_a_timeout_shorter_than_the_start_is_an_error_too():
    with pytest.raises(RankError, match="did not end within 0.5 s"):
        launch(ranks.who, 2, timeout=0.5)


@pytest.mark.parametrize(
    "arguments, options, error, said",
    [
        ((ranks.who, 0), {}, ValueError, "world_size is 0; wanted at least 1"),
        ((ranks.who, -2), {}, ValueError, "world_size is -2"),
        ((ranks.who, 1.5), {}, TypeError, "world_size is 1.5; wanted a whole number"),
        ((ranks.who, 1), {"timeout": 0}, ValueError, "timeout is 0"),
        (
            (ranks.who, 1),
            {"backend": "smoke"},
            ValueError,
            "backend is 'smoke'; wanted one of 'gloo', 'nccl'",
        ),
        ((ranks.who, 999), {"backend": "nccl"}, ValueError, "999 rank.*GPU.*one for each rank|built without"),
        (("who", 1), {}, TypeError, "fn is 'who'; wanted a function"),
        ((lambda: 1, 1), {}, ValueError, "<lambda>.*no other process can import"),
        ((ranks.who, 1, lambda: 1), {}, TypeError, "argument 0 of fn is .*pickle cannot send"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(arguments, options, error, said):
    with pytest.raises(error, match=said):
        launch(*arguments, **options)


def test_a_function_defined_in_a_cell_is_refused_with_what_to_do():
    """A cell runs in a ``__main__`` that has no file, as the command line's -c does."""
    code = "from ed_lib.parallel import launch\ndef f(): pass\nlaunch(f, 1)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "fn is 'f', defined in a notebook's cell" in done.stderr and "%%writefile" in done.stderr


SCRIPT = """
from ed_lib.parallel import launch

def double(x):
    import torch.distributed as dist
    return 2 * x + dist.get_rank()

{guard}print(sum(launch(double, 2, 10, timeout=100)), launch(double, 2, 1, timeout=100))
"""


def test_a_script_may_launch_a_function_of_its_own_and_torchrun_runs_the_same_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard="if __name__ == '__main__':\n    "))
    here = {"cwd": ROOT, "capture_output": True, "text": True}
    alone = subprocess.run([sys.executable, script], **here)
    assert alone.stdout == "41 [2, 3]\n", alone.stderr
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    joined = subprocess.run([*torchrun, script], **here)
    assert sorted(joined.stdout.split()) == sorted("41 [2, 3] 41 [2, 3]".split()), joined.stderr
    wrong = subprocess.run([*torchrun[:-1], "1", script], **here)
    assert "world_size is 2; wanted 1, which torchrun has started" in wrong.stderr


def test_a_script_without_a_guard_gets_an_error_and_not_a_flood_of_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard=""))
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert "exited with code 1" in done.stderr and "__name__ == '__main__'" in done.stderr


def test_ranks_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from ed_lib.parallel import launch\nfrom tests.parallel import ranks\n"
        "if __name__ == '__main__':\n    launch(ranks.spin, 2, timeout=600)\n"
    )
    parent = psutil.Popen([sys.executable, script], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 60
    while len(children := parent.children(recursive=True)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(3)  # until they spin
    parent.kill()
    parent.wait()
    gone, alive = psutil.wait_procs(children, timeout=20)
    for process in alive:
        process.kill()
    assert len(gone) == 3 and not alive
