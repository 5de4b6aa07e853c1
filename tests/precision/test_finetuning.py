"""Fine-tuning: it learns, the rate warms up and falls, biases do not decay, labels are checked."""

import warnings

import pytest
import torch

from ed_lib import models
from ed_lib.precision import finetuning, minilm
from ed_lib.precision.finetuning import Examples
from ed_lib.precision.scaler import GradScaler, StaticScaler

SMALL = {"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 30, "positions": 12}


def task(n, seed=0, classes=3):
    """Sequences of different lengths whose class is the first token's."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 10, (n,), generator=draw)
    tokens = [torch.randint(3, 30, (int(length),), generator=draw) for length in lengths]
    labels = torch.tensor([int(each[0]) % classes for each in tokens])
    return Examples(tokens, [torch.zeros_like(each) for each in tokens], labels)


def test_it_learns():
    net, train, test = models.Encoder(**SMALL, eps=minilm.EPS), task(600), task(200, seed=1)
    history = finetuning.finetune(net, train, test, rate=3e-3, epochs=6)
    assert history.accuracy[0] < 0.6 and history.accuracy[-1] > 0.9
    assert history.accuracy[-1] == finetuning.accuracy(net, test, batch=7), "whatever the batch"


@pytest.mark.oracle
def test_the_rate_warms_up_and_falls_and_only_matrices_decay(monkeypatch):
    rates, decays = [], {}
    step = torch.optim.AdamW.step

    def watched(self, *args):
        rates.append(self.param_groups[0]["lr"])
        decays.update(
            {p.dim(): group["weight_decay"] for group in self.param_groups for p in group["params"]}
        )
        return step(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    finetuning.finetune(
        models.Encoder(**SMALL, eps=minilm.EPS), task(100), rate=1.0, epochs=2, batch=10, warmup=0.2
    )
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0]) and rates[-1] == pytest.approx(1 / 16)
    assert rates[3:] == sorted(rates[3:], reverse=True) and len(rates) == 20
    assert decays == {1: 0.0, 2: 0.01}


def test_in_few_bits_with_a_scaler():
    net, scaler = models.Encoder(**SMALL, eps=minilm.EPS), GradScaler("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = finetuning.finetune(
            net, task(64), epochs=2, context=lambda: torch.autocast("cpu", torch.bfloat16), scaler=scaler
        )
    assert len(history.loss) == 4 and net.classes.weight.dtype == torch.float32


@pytest.mark.parametrize("scaler", [GradScaler("cpu"), StaticScaler(1.0, "cpu")], ids=["dynamic", "static"])
def test_the_schedule_waits_while_steps_are_skipped(monkeypatch, scaler):
    rates, step, found_inf = [], torch.optim.AdamW.step, [torch.inf] * 3

    def watched(self, *args):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args)

    scale = scaler.scale  # overflows in the first three steps
    monkeypatch.setattr(scaler, "scale", lambda loss: scale(loss * (found_inf.pop() if found_inf else 1)))
    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    net = models.Encoder(**SMALL, eps=minilm.EPS)
    finetuning.finetune(net, task(100), rate=1.0, epochs=1, batch=10, warmup=1.0, scaler=scaler)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]), "as many rates as steps taken"
