"""The training script: the same weights under python, torchrun and launch; right by lenet."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ed_lib import data
from ed_lib.parallel import by_hand, launch, train

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--images", "150", "--batch", "64", "--epochs", "1", "--lr", "0.5", "--offline"]
ARGUMENTS = 64, 0.5, 1, 150, 0, True
MODULE = "ed_lib.parallel.train"
SCRIPT = ["-m", MODULE, "lenet", *SMALL]
SHARDED = ["-m", MODULE, "gpt", "--steps", "3", "--batch", "5"]
LONG = 240.0  # seconds; a machine may be busy
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def shown(command):
    """What it prints, and nothing else may."""
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    return run.stdout


def weights(text):
    found = re.findall(r"^weights: (.*)$", text, re.M)
    assert len(found) == 1 and re.fullmatch("[0-9a-f]{64}", found[0]), text  # one line, from one process
    return found[0]


def test_python_torchrun_and_launch_give_the_same_weights():
    by_python = shown([sys.executable, *SCRIPT, "--ranks", "2"])
    by_torchrun = shown([*TORCHRUN, "2", *SCRIPT, "--ranks", "2"])
    assert weights(by_python) == weights(by_torchrun)
    assert "samples by rank: 75 75" in by_python  # an epoch of 150: 32 + 32, 32 + 32, 11 + 11
    lines = [re.sub(r"[\d.]+ s$", "", line) for line in by_python.splitlines()]  # but for the seconds
    assert lines == [re.sub(r"[\d.]+ s$", "", line) for line in by_torchrun.splitlines()] and len(lines) == 4
    found = launch(train.train, 2, *ARGUMENTS, timeout=LONG)
    assert {result["sha256"] for result in found} == {weights(by_python)}


@pytest.mark.skipif(not os.environ.get("ED_DATA"), reason="no text")
def test_the_sharded_script_gives_the_same_weights_as_launch_and_by_every_stage():
    by_python = weights(shown([sys.executable, *SHARDED, "--ranks", "2", "--stage", "3"]))
    found = launch(train.train_sharded, 2, 2, 3, 5, timeout=LONG)
    assert {result["sha256"] for result in found} == {by_python}


IMAGES = 130  # two are left for the last step, of three ranks too


def test_it_learns_what_one_process_with_several_devices_learns():
    digits = data.load("fashion-mnist", offline=True)
    x, y = data.tensors(digits.train_images[:IMAGES], digits.train_labels[:IMAGES])
    test = data.tensors(digits.test_images, digits.test_labels)
    history, other = (by_hand.train(["cpu"], 64, 0.5, 2, x, y, test, seed) for seed in (0, 1))
    wanted, elsewhere = epochs(history.loss), epochs(other.loss)
    assert (wanted - elsewhere).abs().min() > 2e-5
    found = launch(train.train, 3, 64, 0.5, 2, IMAGES, 0, True, timeout=LONG)
    for result in found:
        assert (torch.tensor(result["loss"]) - wanted).abs().max() < 3e-6
        assert result["accuracy"] == history.accuracy[1:] and len(result["seconds"]) == 2
        assert result["sha256"] == found[0]["sha256"]
    assert sum(result["samples"] for result in found) == 2 * IMAGES


def epochs(losses):
    """The mean loss of two epochs from those of their steps, of 64, 64 and the rest."""
    sizes = torch.tensor([64.0, 64, IMAGES - 128])
    return (torch.tensor(losses).view(2, 3) * sizes).sum(dim=1) / IMAGES


def test_ranks_that_differ_are_reported(capsys):
    one = {"loss": [2.3], "accuracy": [0.1], "seconds": [1.0], "samples": 3, "sha256": "b"}
    train.report([one, one | {"sha256": "a", "samples": 2}])
    assert capsys.readouterr().out.splitlines()[1:] == ["samples by rank: 3 2", "weights: a b"]
