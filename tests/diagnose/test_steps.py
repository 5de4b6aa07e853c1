"""Steps of many kinds are diagnosed as they are, and train afterwards as if they had not been."""

import time

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from ed_lib import diagnose
from ed_lib.diagnose import diagnosing, watching
from ed_lib.parallel import launch
from tests.diagnose import ranks

LINES, COLUMNS = 40, 88
ROWS, INPUTS, HIDDEN, OUTPUTS = 8, 6, 10, 3
F4 = 4  # bytes of a number
X = torch.linspace(-1, 1, ROWS * INPUTS).reshape(ROWS, INPUTS)
LABELS = torch.arange(ROWS) % OUTPUTS


class Training:
    """A small network, its optimizer, and what else a step needs."""

    def __init__(self, kind=torch.optim.Adam, **options):
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))
        self.optimizer = kind(self.model.parameters(), **{"lr": 0.01} | options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.calls = 0

    @property
    def all(self):
        return [self.model, self.optimizer, self.scaler]

    def loss(self, x=X):
        return functional.cross_entropy(self.model(x), LABELS[: len(x)])

    def plain(self, x=X):
        self.optimizer.zero_grad()
        self.loss(x).backward()
        self.optimizer.step()


def autocast(one):
    one.optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = one.loss()
    loss.backward()
    one.optimizer.step()


def scaled(one):
    one.optimizer.zero_grad()
    one.scaler.scale(one.loss()).backward()
    one.scaler.unscale_(one.optimizer)
    nn.utils.clip_grad_norm_(one.model.parameters(), 1.0)
    one.scaler.step(one.optimizer)
    one.scaler.update()


def accumulating(one):
    one.optimizer.zero_grad()
    for part in X.chunk(4):
        (one.loss(part) / 4).backward()
    one.optimizer.step()


def every_third_time(one):
    one.loss().backward()
    one.calls += 1
    if one.calls % 3 == 0:
        one.optimizer.step()
        one.optimizer.zero_grad()


def with_a_closure(one):
    def closure():
        one.optimizer.zero_grad()
        loss = one.loss()
        loss.backward()
        return loss

    one.optimizer.step(closure)


def recomputing(one):
    one.optimizer.zero_grad()
    functional.cross_entropy(checkpoint(one.model, X, use_reentrant=False), LABELS).backward()
    one.optimizer.step()


def of_second_order(one):
    one.optimizer.zero_grad()
    found = torch.autograd.grad(one.loss(), list(one.model.parameters()), create_graph=True)
    sum(each.square().sum() for each in found).backward()
    one.optimizer.step()


def of_functions(one):
    """The gradients of each example, by ``torch.func``."""
    parameters = dict(one.model.named_parameters())

    def loss(values, x, label):
        return functional.cross_entropy(torch.func.functional_call(one.model, values, x), label)

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    for name, gradient in each({n: p.detach() for n, p in parameters.items()}, X, LABELS).items():
        parameters[name].grad = gradient.mean(0)
    one.optimizer.step()


def only_forward(one):
    with torch.inference_mode():
        one.loss()


STEPS = {
    "plain": Training.plain,
    "autocast": autocast,
    "GradScaler": scaled,
    "accumulation": accumulating,
    "every third time": every_third_time,
    "LBFGS": with_a_closure,
    "recomputation": recomputing,
    "second order": of_second_order,
    "torch.func": of_functions,
    "forward only": only_forward,
}
KINDS = {"LBFGS": (torch.optim.LBFGS, {"lr": 0.1, "max_iter": 5, "history_size": 3})}
PRODUCTS = 2 * ROWS * (INPUTS * HIDDEN + HIDDEN * OUTPUTS)  # FLOPs of a forward pass
# Backward: both weights' gradients, and that of the hidden layer
WHOLE = PRODUCTS + 2 * ROWS * (INPUTS * HIDDEN + 2 * HIDDEN * OUTPUTS)
FLOPS = dict.fromkeys(STEPS, WHOLE)
FLOPS |= {"LBFGS": 5 * WHOLE, "forward only": PRODUCTS}
FLOPS["recomputation"] = WHOLE + 2 * ROWS * INPUTS * HIDDEN  # nothing needs the last product again
# Of each gradient two more: for instance that of dW = hᵀ g to h and to g
del FLOPS["second order"]


def training(name):
    kind, options = KINDS.get(name, (torch.optim.Adam, {}))
    return Training(kind, **options)


def trained(one, name):
    for _ in range(3):
        STEPS[name](one)
    return [each.clone() for each in one.model.parameters()]


def fits_a_screen(report):
    lines = str(report).splitlines()
    return len(lines) <= LINES and max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_diagnosed_as_it_is(name):
    one = training(name)
    report = diagnose.step(lambda: STEPS[name](one), restore=one.all)
    assert fits_a_screen(report)
    assert sum(report.parts.values()) == pytest.approx(report.seconds)
    assert report.verdict and report.operators
    if name in FLOPS:
        passes = [each.flops for each in report.operators if each.phase != "optimizer"]
        assert sum(passes) == FLOPS[name]
    one.calls = 0  # ours, and no state of a model
    assert all(map(torch.equal, trained(one, name), trained(training(name), name)))


def test_phases_of_a_closure_are_its_own():
    """An optimizer that is given a closure runs forward and backward passes inside its step."""
    one = training("LBFGS")
    report = diagnose.step(lambda: with_a_closure(one), restore=one.all)
    flops = {phase: 0 for phase in ("forward", "backward", "optimizer")}
    for each in report.operators:
        if each.name in ("addmm", "mm"):
            flops[each.phase] += each.flops
    assert flops == {"forward": 5 * PRODUCTS, "backward": 5 * (WHOLE - PRODUCTS), "optimizer": 0}
    held = report.measured.held
    history, last = 3 + 3, 1 + 1  # directions and differences of gradients; the last of both
    assert held.optimizer // held.parameters == history + last  # and a few numbers


def test_the_formats_of_autocast_are_told():
    one = Training()
    report = diagnose.step(lambda: autocast(one), restore=one.all)
    assert {each.dtype for each in report.operators if each.flops} == {"bfloat16"}
    assert {each.dtype for each in report.operators if each.phase == "optimizer"} == {"float32"}


def test_the_memory_of_an_mlp():
    """Kept for the backward pass: the input, the hidden layer after ReLU (which the second product
    keeps as well), and of the loss its log-softmax, the labels and the sum of all weights.
    """
    one = Training()
    held = diagnose.step(one.plain, restore=one.all).measured.held
    parameters = INPUTS * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS
    assert held.parameters == held.gradients == F4 * parameters
    assert held.optimizer == F4 * (2 * parameters + 4)  # two moments; and of each tensor the step
    kept = {"x": ROWS * INPUTS, "h": ROWS * HIDDEN, "log-softmax": ROWS * OUTPUTS, "weight": 1}
    assert held.activations == F4 * sum(kept.values()) + LABELS.nbytes


def test_the_activations_of_a_recomputed_step_are_its_input_and_its_loss():
    one = Training()
    held = diagnose.step(lambda: recomputing(one), restore=one.all).measured.held
    kept = {"x": ROWS * INPUTS, "log-softmax": ROWS * OUTPUTS, "weight": 1}
    assert held.activations == F4 * sum(kept.values()) + LABELS.nbytes


def test_the_peak_of_a_step_has_the_model_and_its_state():
    """SGD of one weight w = w − 0.1 · dw: the weight, its gradient, the input and the product."""
    weight = torch.ones(1000, requires_grad=True)
    x = torch.ones(1000)
    optimizer = torch.optim.SGD([weight])

    def step():
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    # The product is gone when its gradient is made; and the loss and its gradient are two numbers.
    alive = {"w": 1000, "x": 1000, "product or gradient": 1000, "loss": 2}
    held = diagnose.step(step, restore=[optimizer]).measured.held
    assert held.peak == F4 * sum(alive.values())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gives_each_step_its_batch(workers):
    one = Training()
    data = TensorDataset(X.repeat(20, 1), LABELS.repeat(20))
    loader = DataLoader(data, ROWS, num_workers=workers)
    seen = []

    def step(batch):
        seen.append(len(batch))
        one.plain(batch[0])

    report = diagnose.step(step, batches=loader, restore=one.all)
    assert fits_a_screen(report)
    ahead = workers * loader.prefetch_factor if workers else 0
    wanted = diagnosing.WARM_UP + ahead + diagnosing.TIMED + diagnosing.WATCHED
    assert report.measured.steps == len(seen) >= wanted
    assert 0 < report.measured.waited <= report.seconds


def test_a_sparse_gradient_is_its_rows():
    table = nn.Embedding(50, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    before = table.weight.clone()

    def step():
        optimizer.zero_grad()
        table(torch.tensor([3, 5])).square().sum().backward()
        optimizer.step()

    report = diagnose.step(step, restore=[table, optimizer])
    assert fits_a_screen(report)
    assert report.measured.held.gradients == 2 * 4 * F4 + 2 * 8  # two rows, and their two indices
    assert torch.equal(table.weight, before) and table.weight.grad is None


@pytest.mark.parametrize("where", ["before", "at the end"])
def test_what_a_step_does_outside_pytorch_is_seen(where):
    one = Training()
    slept = 0.02

    def step():
        if where == "before":
            time.sleep(slept)
        one.plain()
        if where == "at the end":
            time.sleep(slept)

    report = diagnose.step(step, restore=one.all)
    assert report.measured.outside >= slept
    assert report.measured.tail >= slept or where == "before"
    assert report.parts["outside PyTorch"] > 0


def test_the_rank_of_a_replica_is_diagnosed():
    """Each rank on its own; all of them run the same number of steps, or one would wait for ever."""
    found = launch(ranks.diagnosed, 2, timeout=120.0)
    for text, sends, steps, parts, seconds, same in found:
        assert text.startswith("The step waits most for: ")
        assert len(text.splitlines()) <= LINES and max(map(len, text.splitlines())) <= COLUMNS
        assert sends == {"c10d::allreduce_"}
        assert sum(parts.values()) == pytest.approx(seconds)
        assert same
        assert steps == found[0][2]


@pytest.mark.slow
def test_a_compiled_step_has_its_graph():
    torch._dynamo.reset()
    one = Training()
    one.model.compile()
    report = diagnose.step(one.plain, restore=one.all)
    assert fits_a_screen(report)
    assert report.measured.profile.compiled > 0
    assert "compiled code" in [each.name for each in report.operators]
    assert "torch.compile" not in [cure.name for cure in report.cures]
    assert report.measured.compilation.graphs >= 1
    assert sum(report.parts.values()) == pytest.approx(report.seconds)
    other = Training()
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))


def test_what_watches_a_step_is_gone_afterwards():
    one = Training()
    one.plain()
    diagnose.step(one.plain, restore=one.all)
    before = len(watching.watch(one.plain))
    one.plain()
    assert len(watching.watch(one.plain)) == before
