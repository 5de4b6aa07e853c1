"""launch: what ranks return, and that nothing is left of them however they end; and the training
script.
"""

import multiprocessing
import os
import pickle
import re
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
import torch.nn.functional as F

from ed_lib import data
from ed_lib.models import GPT
from ed_lib.parallel import RankError, launch, launcher, train
from tests.parallel import ranks

ROOT = Path(__file__).resolve().parents[2]
LONG = 120.0  # seconds; a machine may be busy
LATE = 2.0  # seconds after its time that a busy machine may take
pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_it_returns_what_each_rank_returned_whatever_the_environment_says_of_networks(monkeypatch):
    monkeypatch.setenv(
        "GLOO_SOCKET_IFNAME", "elsewhere0"
    )  # on one machine ranks meet on its loopback
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


@pytest.mark.parametrize("how, rank, said", [
    ("raises", 1, "KeyError: 'a word to find'"), ("leaves", 0, "SystemExit: 3"),
    ("exits", 1, "exited with code 3"), ("is killed", 0, "SIGKILL"),
    ("exits as a failed import does", 1, "exited with code 1, without a result$"),
    ("returns what cannot be sent", 1, "pickle"),
])  # fmt: skip
def test_a_rank_that_fails_is_named_and_the_others_end(how, rank, said):
    start = time.monotonic()
    with pytest.raises(RankError, match=said) as caught:
        launch(ranks.misbehave, 2, how, rank, timeout=LONG)
    assert caught.value.rank == rank and f"rank {rank}" in str(caught.value)
    assert time.monotonic() - start < LONG  # not by its deadline


@pytest.mark.parametrize("error", [OSError("no room for a process"), KeyboardInterrupt()])
def test_a_start_that_fails_is_told_and_the_rank_started_before_it_ends(monkeypatch, error):
    start = launcher.CONTEXT.Process.start

    def second_fails(process):
        if process.name == "rank 1":
            raise error
        start(process)

    monkeypatch.setattr(launcher.CONTEXT.Process, "start", second_fails)
    with pytest.raises(type(error)) as caught:
        launch(ranks.spin, 3, timeout=LONG)
    assert caught.value is error


def test_ranks_that_hang_are_ended_in_time_and_named_with_the_place():
    for timeout in (1.0, 4.0, 16.0, 64.0):
        start = time.monotonic()
        with pytest.raises(RankError, match=f"did not end within {timeout:g} s") as caught:
            launch(ranks.hang, 3, timeout=timeout)
        assert time.monotonic() - start < timeout + LATE
        text = str(caught.value)
        if "in spin" in text and text.count("in hang") == 3:
            break  # else the machine is busy, and they had not got as far
    assert text.startswith("rank 1, rank 2, rank 0 did not end")  # rank 0 only waits for the others
    assert caught.value.rank == 1


def test_a_rank_that_stops_in_the_middle_of_its_result_is_ended_in_time():
    start = time.monotonic()
    with pytest.raises(RankError, match="rank 1 did not end within 2 s"):
        launch(ranks.stop_halfway, 2, timeout=2.0)
    assert time.monotonic() - start < 2.0 + LATE


def test_a_rank_that_is_gone_is_told_at_once_though_the_others_work_on(tmp_path):
    with pytest.raises(RankError, match="rank 1 exited with code 3"):
        launch(ranks.exit_while_others_spin, 2, str(tmp_path / "gone"), timeout=LONG)
    assert time.monotonic() - float((tmp_path / "gone").read_text()) < 2


def test_a_long_timeout_and_a_rank_that_closes_its_output_lose_no_result():
    """The system's waits have a longest time, which a timeout may exceed."""
    assert launch(ranks.close_stdout, 2, timeout=1e7) == [0, 1]


def test_temporary_files_may_be_here(monkeypatch, tmp_path):
    """As TMPDIR=. has it; the ranks work in another folder than this process."""
    launch(ranks.close_stdout, 1, timeout=LONG)  # the server, once it runs, stays where it is
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", ".")
    assert launch(ranks.close_stdout, 2, timeout=LONG) == [0, 1]


class Slow:
    """A spawned process: its pipe closes, and only then it can be waited for."""

    def __init__(self, codes):
        self.codes = codes

    @property
    def exitcode(self):
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]


def test_a_process_that_has_closed_its_pipe_is_waited_for(tmp_path):
    """Asked too soon, it has no exit code, and its result is lost."""
    (tmp_path / "report 3").write_bytes(pickle.dumps((None, "found")))
    assert launcher._report(Slow([None, None, 0]), 3, tmp_path, 0.0) == (None, "found")


def test_a_process_that_closes_its_pipe_and_goes_on_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "GRACE", 0.01)
    failure, _ = launcher._report(Slow([None]), 3, tmp_path, 0.0)
    assert "closed its pipe" in failure.how and failure.rank == 3


@pytest.mark.parametrize("sizes", [[2**18], pytest.param([1, 2**18] * 10, marks=pytest.mark.slow)])
def test_results_come_back_from_ranks_that_are_spawned(monkeypatch, sizes):
    """As on macOS, and on Linux where the path of the temporary files is long."""
    monkeypatch.setattr(launcher, "CONTEXT", multiprocessing.get_context("spawn"))
    for n in sizes:  # numbers of four bytes, up to a megabyte
        found = launch(ranks.many, 2, n, timeout=LONG)
        assert [(len(one), one[-1].item()) for one in found] == [(n, 0.0), (n, 1.0)]


def test_torchruns_mark_without_the_rest_is_named(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    for name in launcher.TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "1")
    said = "TORCHELASTIC_RUN_ID and no RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; wanted all"
    with pytest.raises(ValueError, match=said):
        launch(ranks.who, 1)


def test_a_timeout_shorter_than_the_start_is_an_error_too():
    with pytest.raises(RankError, match="did not end within 0.01 s"):
        launch(ranks.who, 2, timeout=0.01)


class Options:
    """As a cell may define it."""


@pytest.fixture
def in_a_notebook(monkeypatch):
    """A cell runs in a ``__main__`` that has no file."""
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    monkeypatch.setattr(ranks.who, "__module__", "__main__")
    monkeypatch.setattr(Options, "__module__", "__main__")


@pytest.mark.parametrize("call, said", [
    ((ranks.who,), "fn is 'who', defined in a notebook's cell"),
    ((partial(ranks.who, 1),), "fn or an argument holds 'who', defined in a notebook's cell"),
    ((ranks.change, Options()), "fn or an argument holds 'Options', defined in"),
    ((ranks.change, {"of": [Options]}), "fn or an argument holds 'Options', defined in"),
])  # fmt: skip
def test_what_is_defined_in_a_cell_is_refused_with_what_to_do(in_a_notebook, call, said):
    fn, *args = call
    with pytest.raises(ValueError, match=said + "(?s:.)*%%writefile"):
        launch(fn, 1, *args)


SCRIPT = """
import sys
import torch.distributed as dist
from ed_lib.parallel import launch, train

def double(x):
    return 2 * x + dist.get_rank()

{guard}
    for n in range(3):  # launches that follow each other do not meet in what the ones before left
        assert launch(double, 2, n, timeout=100) == [2 * n, 2 * n + 1]
    if sys.argv[1:]:
        train.main()
    launch(double, 3, 1, timeout=100)
"""
TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
TRAIN = ("--steps", "3", "--batch", "5", "--ranks", "2") if os.environ.get("ED_DATA") else ()


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """{what ran, all side by side: (its output, its errors)}."""
    folder = tmp_path_factory.mktemp("scripts")
    script, unguarded = folder / "script.py", folder / "unguarded.py"
    script.write_text(SCRIPT.format(guard="if __name__ == '__main__':"))
    unguarded.write_text(SCRIPT.format(guard="if True:"))
    calls = {"python": ["-m", "ed_lib.parallel.train", *TRAIN] if TRAIN else [script]}
    calls["unguarded"] = [unguarded]
    calls["torchrun"] = [*TORCHRUN, script, *TRAIN, *("--stage", "3")[: len(TRAIN)]]
    running = {}
    for what, call in calls.items():
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running[what] = subprocess.Popen([sys.executable, *call], cwd=ROOT, **pipes)
    return {
        what: (*process.communicate(timeout=LONG), process.returncode)
        for what, process in running.items()
    }


def test_a_script_may_launch_a_function_of_its_own_and_torchrun_runs_the_same_script(said):
    assert said["python"][2] == 0, said["python"]
    assert said["torchrun"][1].count("world_size is 3; wanted 2, which torchrun has started") >= 2


def test_a_world_without_its_peers_is_a_named_error_in_time():
    """Of two worlds one rank each: it keeps the store, or not. Forked, since a new process would
    import PyTorch for seconds.
    """
    running = []
    for rank in "01":
        with socket.create_server(("127.0.0.1", 0)) as server:
            world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        world |= {"TORCHELASTIC_RUN_ID": "x", "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
        mine, its = launcher.CONTEXT.Pipe(duplex=False)
        process = launcher.CONTEXT.Process(target=ranks.wait_alone, args=(world, its))
        process.start()
        running.append((rank, process, mine))
    for rank, process, mine in running:
        assert mine.poll(LONG)
        assert f"rank {rank} did not meet all 2 ranks within 2 s" in mine.recv()
        process.join()


def test_a_script_without_a_guard_gets_an_error_and_not_a_flood_of_processes(said):
    assert (
        "exited with code 1" in said["unguarded"][1]
        and "__name__ == '__main__'" in said["unguarded"][1]
    )


def by_both():
    """By replicas, and by ZeRO's last stage."""
    return {stage: train.train(stage, 3, 5) for stage in (None, 3)}


@pytest.mark.oracle
@pytest.mark.skipif(not TRAIN, reason="no text")
def test_the_training_script_learns_what_one_process_learns_however_it_is_started(said):
    text, found = data.text(), launch(by_both, 2, timeout=LONG)
    net = GPT(len(text.characters), train.LENGTH)
    optimizer, wanted = torch.optim.Adam(net.parameters(), 1e-3), []
    for _, (x, y) in zip(
        range(3), data.stretches(text.train, 5, train.LENGTH, seed=0), strict=False
    ):
        loss = F.cross_entropy(net(x.T).flatten(0, 1), y.T.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    assert wanted[0] - wanted[2] > 0.01
    for rank in found:
        for stage, result in rank.items():
            assert result["loss"] == pytest.approx(wanted, abs=1e-5)
            assert result["sha256"] == found[0][stage]["sha256"] and result["seconds"] > 0
    for what, stage in (("python", None), ("torchrun", 3)):  # one line, from one process
        out, errors, _ = said[what]
        assert re.findall(r"^weights: (.*)$", out, re.M) == [found[0][stage]["sha256"]], errors
        assert out.startswith("loss: ") and out.count("holds weights") == (2 if stage else 0)


def test_ranks_that_differ_are_reported(capsys):
    train.report([{"loss": [2.3], "sha256": "b"}, {"loss": [2.3], "sha256": "a"}])
    assert capsys.readouterr().out.splitlines() == ["loss: 2.3000", "weights: a b"]


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "how, when, slow", [("kill", "starting *", 2), ("terminate", "rank * spins", 0)]
)
def test_ranks_end_soon_after_their_parent_and_leave_nothing(tmp_path, how, when, slow):
    """The script is ended while its ranks start, or while they compute."""
    with tempfile.TemporaryDirectory() as short:  # a path that leaves room for the name of a socket
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": short}
        (tmp_path / "script.py").write_text(SLOW.format(slow=slow))
        parent = psutil.Popen([sys.executable, tmp_path / "script.py"], cwd=ROOT, env=environment)
        deadline = time.monotonic() + LONG
        children = []  # two ranks, two helpers of multiprocessing
        while len(list(tmp_path.glob(when))) < 2 or len(children) < 4:
            assert time.monotonic() < deadline, children
            time.sleep(0.1)
            children = parent.children(recursive=True)
        getattr(parent, how)()
        parent.wait()
        # a machine may be busy; none sleeps that little
        gone, alive = psutil.wait_procs(children, timeout=30)
        for process in alive:
            process.kill()
        assert len(gone) == 4 and not alive
        assert not list(Path(short).glob("ed_lib-*"))
