"""Whatever a diagnosis trains is afterwards what it was, bit for bit, also where the step raised."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from ed_lib import diagnose
from ed_lib.diagnose.restoring import Kept

X = torch.linspace(-1, 1, 20).reshape(4, 5)


class Net(nn.Module):
    """With normalisation, dropout, and buffers that no state_dict has: one that is changed in
    place, one that each forward pass makes anew, and one that is None before the first.
    """

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
        self.register_buffer("steps", torch.zeros(()), persistent=False)
        self.register_buffer("average", torch.zeros(5), persistent=False)
        self.register_buffer("last", None)

    def forward(self, x):
        self.steps += 1
        self.average = 0.9 * self.average + 0.1 * x.mean(0)
        self.last = x
        return self.body(x)


class Training:
    """A model, what trains it, and a step that may raise."""

    def __init__(self, optimizer=torch.optim.Adam, fails_in=None):
        torch.manual_seed(7)
        self.model = Net()
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.fails_in = None
        self.step()
        self.model.body[1].eval()
        self.fails_in = fails_in

    @property
    def all(self):
        return [self.model, self.optimizer, self.scheduler, self.scaler]

    def fail(self, where):
        if self.fails_in == where:
            raise RuntimeError(where)

    def step(self):
        random.random(), np.random.random()  # noqa: NPY002, B018
        self.optimizer.zero_grad()
        loss = self.model(X).square().sum()
        self.fail("forward")
        loss.register_hook(lambda grad: self.fail("backward"))
        self.scaler.scale(loss).backward()
        hook = self.optimizer.register_step_pre_hook(lambda *_: self.fail("optimizer"))
        try:
            self.scaler.step(self.optimizer)
        finally:
            hook.remove()
        self.scaler.update()
        self.scheduler.step()
        self.model.train()

    def state(self):
        model = self.model
        return {
            "tensors": [*model.parameters(), *model.buffers()],
            "gradients": [each.grad for each in model.parameters()],
            "last": model.last,
            "modes": [part.training for part in model.modules()],
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": [
                random.getstate(),
                np.random.get_state(legacy=False),  # noqa: NPY002
                torch.get_rng_state(),
            ],
        }


def equal(one, other):
    """Bit for bit, formats too."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def differing(one, other):
    return [key for key in one if not equal(one[key], other[key])]


def test_a_diagnosis_leaves_no_trace():
    training = Training()
    before = copy.deepcopy(training.state())
    diagnose.step(training.step, restore=training.all)
    assert differing(before, training.state()) == []


def test_a_diagnosis_that_restores_nothing_trains():
    training = Training()
    before = copy.deepcopy(training.state())
    diagnose.step(training.step)
    assert set(differing(before, training.state())) == set(before) - {"last", "random"}


@pytest.mark.parametrize("where", ["forward", "backward", "optimizer"])
def test_a_step_that_raises_leaves_no_trace(where):
    training = Training(fails_in=where)
    before = copy.deepcopy(training.state())
    with pytest.raises(RuntimeError, match=f"^{where}$"):
        diagnose.step(training.step, restore=training.all)
    assert differing(before, training.state()) == []


@pytest.mark.parametrize("where", ["forward", "backward", "optimizer"])
def test_training_goes_on_after_a_diagnosis_as_if_there_had_been_none(where):
    """What no state_dict shows, too: a scaler that has unscaled the gradients remembers it."""
    diagnosed, alone = Training(fails_in=where), Training()
    with pytest.raises(RuntimeError):
        diagnose.step(diagnosed.step, restore=diagnosed.all)
    diagnosed.fails_in = None
    for training in (alone, diagnosed):
        torch.manual_seed(1), random.seed(1), np.random.seed(1)  # noqa: NPY002, B018
        for _ in range(3):
            training.step()
    assert differing(alone.state(), diagnosed.state()) == []


def test_before_the_first_step_there_is_no_gradient_and_no_state():
    model = nn.Linear(5, 2)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        model(X).sum().backward()
        optimizer.step()

    diagnose.step(step, restore=[model, optimizer])
    assert [each.grad for each in model.parameters()] == [None, None]
    assert optimizer.state_dict()["state"] == {}


def test_gradients_that_are_added_up_are_the_same_tensors():
    """DDP's and a flat optimizer's gradients are views of one array."""
    model = nn.Linear(5, 2)
    flat = torch.ones(12)
    model.weight.grad, model.bias.grad = flat[:10].view(2, 5), flat[10:]
    kept = Kept([model])
    model.zero_grad()
    model(X).sum().backward()
    kept.put_back()
    assert model.weight.grad.data_ptr() == flat.data_ptr()
    assert torch.equal(model.weight.grad, torch.ones(2, 5)) and torch.equal(flat, torch.ones(12))


@pytest.mark.parametrize("kind", ["Adam", "NAdam", "ASGD", "Adagrad", "Rprop"])
def test_an_optimizers_state_keeps_its_formats(kind):
    """A model in bfloat16 has optimizers whose state is in float32."""
    model = nn.Linear(5, 2, dtype=torch.bfloat16)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        model(X.bfloat16()).sum().backward()
        optimizer.step()

    step()
    before = copy.deepcopy(optimizer.state_dict())
    kept = Kept([model, optimizer])
    step()
    optimizer.param_groups[0]["lr"] = 1.0
    kept.put_back()
    assert equal(before, optimizer.state_dict())


def test_a_tied_weight_and_a_frozen_one():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    kept = Kept([model])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    kept.put_back()
    assert equal(before, model.state_dict()) and model[1].weight is model[0].weight
    assert not model[0].bias.requires_grad


def test_what_is_not_named_is_still_random_in_the_same_way():
    state = torch.get_rng_state()
    diagnose.step(lambda: torch.rand(3).sum())
    assert torch.equal(torch.get_rng_state(), state)
