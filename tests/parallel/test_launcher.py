"""launch: what ranks return, and that nothing is left of them however they end."""

import os
import socket
import subprocess
import sys
import tempfile
import time
import types
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


pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_it_returns_what_each_rank_returned_whatever_the_environment_says_of_networks(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "elsewhere0")  # on one machine ranks meet on its loopback
    found = launch(ranks.who, 3, "a", {"b": [1]}, timeout=LONG)
    assert [one[0] for one in found] == [0, 1, 2]
    for _, size, total, threads, pid, args in found:
        assert (size, float(total), threads, args) == (3, 6.0, 1, ("a", {"b": [1]}))
        assert pid != os.getpid()
    assert len({one[4] for one in found}) == 3


def test_one_rank_is_enough_and_arguments_are_copied():
    array, tensor = np.zeros(3), torch.zeros(300_000)  # more than a pipe holds
    ((one, other),) = launch(partial(ranks.change, tensor), 1, array, timeout=LONG)
    assert (one == 1).all() and (other == 1).all() and (array == 0).all() and (tensor == 0).all()


@pytest.mark.parametrize(
    "how, rank, said",
    [
        ("raises", 1, "KeyError: 'a word to find'"),
        ("leaves", 0, "SystemExit: 3"),
        ("exits", 1, "exited with code 3"),
        ("is killed", 0, "SIGKILL"),
        ("returns what cannot be sent", 1, "pickle"),
    ],
)
def test_a_rank_that_fails_is_named_and_the_others_end(how, rank, said):
    start = time.monotonic()
    with pytest.raises(RankError, match=said) as caught:
        launch(ranks.misbehave, 2, how, rank, timeout=LONG)
    assert caught.value.rank == rank and f"rank {rank}" in str(caught.value)
    assert time.monotonic() - start < LONG  # not by its deadline


def test_ranks_that_hang_are_ended_in_time_and_named_with_the_place():
    for timeout in (1.0, 4.0, 16.0, 64.0):
        start = time.monotonic()
        with pytest.raises(RankError, match=f"did not end within {timeout:g} s") as caught:
            launch(ranks.hang, 3, timeout=timeout)
        assert time.monotonic() - start < timeout + 0.7
        text = str(caught.value)
        if "in spin" in text and text.count("in hang") == 3:
            break  # else the machine is busy, and they had not got as far
    assert text.startswith("rank 1, rank 2, rank 0 did not end")  # rank 0 only waits for the others
    assert caught.value.rank == 1


def test_a_rank_that_stops_in_the_middle_of_its_result_is_ended_in_time():
    start = time.monotonic()
    with pytest.raises(RankError, match="rank 1 did not end within 3 s"):
        launch(ranks.stop_halfway, 2, timeout=3.0)
    assert time.monotonic() - start < 3.7


def test_a_rank_that_is_gone_is_told_at_once_though_the_others_work_on(tmp_path):
    with pytest.raises(RankError, match="rank 1 exited with code 3"):
        launch(ranks.exit_while_others_spin, 2, str(tmp_path / "gone"), timeout=LONG)
    assert time.monotonic() - float((tmp_path / "gone").read_text()) < 2


def test_a_timeout_shorter_than_the_start_is_an_error_too():
    with pytest.raises(RankError, match="did not end within 0.01 s"):
        launch(ranks.who, 2, timeout=0.01)


def test_a_function_defined_in_a_cell_is_refused_with_what_to_do(monkeypatch):
    """A cell runs in a ``__main__`` that has no file."""
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    monkeypatch.setattr(ranks.who, "__module__", "__main__")
    with pytest.raises(ValueError, match="fn is 'who', defined in a notebook's cell(?s:.)*%%writefile"):
        launch(ranks.who, 1)


SCRIPT = """
from ed_lib.parallel import launch

def double(x):
    import torch.distributed as dist
    return 2 * x + dist.get_rank()

{guard}print(f"{{sum(launch(double, 2, 10, timeout=100))}} {{launch(double, 2, 1, timeout=100)}}\\n", end="")
"""

MORE = """
    import torch.distributed as dist
    if dist.is_torchelastic_launched():
        for n in range(3):  # launches that follow each other do not meet in what the ones before left
            assert launch(double, 2, n, timeout=20) == [2 * n, 2 * n + 1]
        launch(double, 3, 1)
"""


def test_a_script_may_launch_a_function_of_its_own_and_torchrun_runs_the_same_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard="if __name__ == '__main__':\n    ") + MORE)
    here = {"cwd": ROOT, "capture_output": True, "text": True}
    alone = subprocess.run([sys.executable, script], **here)
    assert alone.stdout == "41 [2, 3]\n", alone.stderr
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    joined = subprocess.run([*torchrun, script], **here)
    assert sorted(joined.stdout.split()) == sorted("41 [2, 3] 41 [2, 3]".split()), joined.stderr
    assert "world_size is 3; wanted 2, which torchrun has started" in joined.stderr


def test_a_world_without_its_peers_is_a_named_error_in_time():
    """Two worlds of two, of which one rank each comes: the one that keeps the store, and the other."""
    code = "from ed_lib.parallel import launch\nlaunch(len, 2, [], timeout=2)"
    alone = []
    for rank in "01":
        with socket.create_server(("127.0.0.1", 0)) as server:
            world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        world |= {"TORCHELASTIC_RUN_ID": "x", "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
        options = {"cwd": ROOT, "env": os.environ | world, "stderr": subprocess.PIPE, "text": True}
        alone.append(subprocess.Popen([sys.executable, "-c", code], **options))
    for rank, process in enumerate(alone):
        _, said = process.communicate(timeout=LONG)
        assert f"RankError: rank {rank} did not meet all 2 ranks within 2 s" in said, said


def test_a_script_without_a_guard_gets_an_error_and_not_a_flood_of_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard=""))
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert "exited with code 1" in done.stderr and "__name__ == '__main__'" in done.stderr


SLOW = """
import os, time
from pathlib import Path
if __name__ == "__mp_main__":
    Path(__file__).with_name(f"starting {{os.getpid()}}").touch()
    time.sleep({slow})  # as an import may take long
from ed_lib.parallel import launch
from tests.parallel import ranks
if __name__ == "__main__":
    launch(ranks.spin, 2, os.path.dirname(__file__), timeout=100.0)
"""


@pytest.fixture
def short_folder():
    """A temporary folder whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("how, when, slow", [("kill", "starting *", 2), ("terminate", "rank * spins", 0)])
def test_ranks_end_soon_after_their_parent_and_leave_nothing(tmp_path, short_folder, how, when, slow):
    (tmp_path / "script.py").write_text(SLOW.format(slow=slow))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(short_folder)}
    parent = psutil.Popen([sys.executable, tmp_path / "script.py"], cwd=ROOT, env=environment)
    deadline = time.monotonic() + LONG
    children = []  # two ranks, two helpers of multiprocessing
    while len(list(tmp_path.glob(when))) < 2 or len(children) < 4:
        assert time.monotonic() < deadline, children
        time.sleep(0.1)
        children = parent.children(recursive=True)
    getattr(parent, how)()
    parent.wait()
    gone, alive = psutil.wait_procs(children, timeout=30)  # a machine may be busy; none sleeps that little
    for process in alive:
        process.kill()
    assert len(gone) == 4 and not alive
    assert not list(short_folder.glob("ed_lib-*"))
