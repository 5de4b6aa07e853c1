"""The memory of a step: a GPU's, by an allocator that is made up; and when it is asked."""

import pytest
import torch

from ed_lib import diagnose
from ed_lib.diagnose import diagnosing, held, operators
from tests.diagnose import made_up

F4 = 4  # bytes of a number


@pytest.fixture
def allocator(monkeypatch):
    """A GPU's allocator: what it was asked, with a peak of 900, 100 allocated and 400 reserved."""
    asked = []
    answers = {"max_memory_allocated": 900, "memory_allocated": 100, "memory_reserved": 400}
    for name in (*answers, "reset_peak_memory_stats"):

        def answer(device, name=name):
            asked.append((name, device))
            return answers.get(name)

        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("empty_cache"))
    return asked


def test_a_gpus_allocator_tells_its_peak_and_what_it_keeps(allocator):
    weight = torch.ones(10, requires_grad=True)
    weight.grad = torch.ones(10)
    found = held.held([torch.optim.SGD([weight])], saved=50, peak=7, device="cuda:1")
    assert (found.peak, found.reserved, found.activations) == (900, 400 - 100, 50)
    assert (found.parameters, found.gradients, found.optimizer) == (10 * F4, 10 * F4, 0)
    assert {device for _, device in allocator} == {"cuda:1"}


def test_a_gpu_forgets_what_other_work_has_held(allocator):
    held.begin_to_hold("cuda:1")
    assert allocator == ["empty_cache", ("reset_peak_memory_stats", "cuda:1")]
    held.begin_to_hold("cpu")
    assert len(allocator) == 2


def test_memory_is_asked_for_before_the_prices_of_the_machine(monkeypatch):
    """To measure them takes large arrays, which are no part of the step's peak."""
    order = []

    def asked(*args):
        order.append("memory")
        return held.held(*args)

    def prices(device):
        order.append("prices")
        return made_up.prices(device)

    monkeypatch.setattr(diagnosing, "held", asked)
    monkeypatch.setattr(operators, "prices", prices)
    diagnose.step(lambda: torch.ones(3).sum())
    assert order == ["memory", "prices"]


def test_one_weight_of_two_optimizers_is_held_once():
    weight = torch.ones(10, requires_grad=True)
    both = [torch.optim.SGD([weight]), torch.optim.SGD([weight])]
    assert held.held(both, saved=0, peak=0, device="cpu").parameters == 10 * F4
