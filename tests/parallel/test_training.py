"""The training script: right by one process, and the same weights under python, torchrun and launch."""

import os
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from conftest import ROOT
from ed_lib import data
from ed_lib.models import GPT
from ed_lib.parallel import launch, train

pytestmark = pytest.mark.skipif(not os.environ.get("ED_DATA"), reason="no text")
SCRIPT = ["-m", "ed_lib.parallel.train", "--steps", "3", "--batch", "5", "--ranks", "2"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def by_both():
    """By replicas, and by ZeRO's last stage."""
    return {stage: train.train(stage, 3, 5) for stage in (None, 3)}


@pytest.fixture(scope="module")
def found():
    return launch(by_both, 2, timeout=240.0)


@pytest.mark.oracle
def test_it_learns_what_one_process_learns(found):
    text = data.text()
    net = GPT(len(text.characters), train.LENGTH)
    optimizer, wanted = torch.optim.Adam(net.parameters(), 1e-3), []
    for _, (x, y) in zip(range(3), data.stretches(text.train, 5, train.LENGTH, seed=0), strict=False):
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


@pytest.mark.parametrize("start, options, stage", [([], [], None), (TORCHRUN, ["--stage", "3"], 3)])
def test_python_and_torchrun_give_the_weights_of_launch(found, start, options, stage):
    command = [sys.executable, *start, *SCRIPT, *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert re.findall(r"^weights: (.*)$", run.stdout, re.M) == [found[0][stage]["sha256"]]  # from one process
    assert run.stdout.startswith("loss: ") and run.stdout.count("holds weights") == (2 if stage else 0)


def test_ranks_that_differ_are_reported(capsys):
    train.report([{"loss": [2.3], "sha256": "b"}, {"loss": [2.3], "sha256": "a"}])
    assert capsys.readouterr().out.splitlines() == ["loss: 2.3000", "weights: a b"]
