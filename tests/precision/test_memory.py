"""The bytes of a training step against formulas counted by hand, against torch's profiler, and on a
GPU against its allocator.
"""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ed_lib import models
from ed_lib.precision.memory import Memory, account

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
pytestmark = pytest.mark.oracle
WIDTHS = [(7, 11, 13, 3), (784, 64, 32, 10), (5, 4)]
OPTIMIZERS = {  # what makes it; bytes of its state for each parameter, and for each tensor of parameters
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), 0, 0),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 4, 0),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.001), 8, 4),  # the 4 are its count of steps
}


def data_of(widths, batch, device="cpu"):
    x = torch.randn(batch, widths[0], device=device)
    return x, torch.randint(0, widths[-1], (batch,), device=device)


def weights_and_biases(widths):
    pairs = list(zip(widths[:-1], widths[1:], strict=True))
    return sum(a * b + b for a, b in pairs), [a * b for a, b in pairs]


def counted(name, widths, batch, dtype, low):
    """What a step counts, and what the parameters' place, gradients, optimizer and input take."""
    make, per_parameter, per_tensor = OPTIMIZERS[name]
    model = models.mlp(widths)

    def run(x, y):
        with torch.autocast("cpu", dtype, enabled=low):
            return F.cross_entropy(model(x).float(), y)

    got = account(model, make(model.parameters()), run, *data_of(widths, batch))
    n, matrices = weights_and_biases(widths)
    fixed = dict(parameters=4 * n, gradients=4 * n)
    fixed["optimizer"] = per_parameter * n + per_tensor * 2 * len(matrices)
    return got, fixed | {"inputs": batch * (4 * widths[0] + 8)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bytes_are_those_counted_by_hand(name, widths, batch, dtype):
    _, matrices = weights_and_biases(widths)
    scores = 4 * batch * widths[-1] + 4  # logarithms, and the loss's own number
    got, fixed = counted(name, widths, batch, dtype, False)
    assert got == Memory(**fixed, activations=4 * batch * sum(widths[1:-1]) + scores, casts=0)
    got, fixed = counted(name, widths, batch, dtype, True)
    activations = 2 * batch * sum(widths[:-1]) + scores  # half of them, and the input's cast
    casts = 2 * sum(
        matrices[1:]
    )  # the first layer's weights are not needed: the input has no gradient
    assert got == Memory(**fixed, activations=activations, casts=casts)


def gated(layer, x):
    a, b = torch.tanh(layer(x)).chunk(
        2, dim=1
    )  # one storage (3, 8), kept by tanh and twice by the product
    return a * b


def dropping(layer, x):
    torch.exp(layer(x)).sin().cos()
    return torch.exp(layer(x))


def cast_twice(layer, x):  # as an emulation rounds: to float16 and back
    h = torch.tanh(
        x @ layer.weight[:5].half().float().t()
    )  # x has no gradient, so the weights are not kept
    return h @ layer.weight[:5].half().float()  # h has one, so they are


@pytest.mark.parametrize(
    ("run", "activations", "casts"),
    [
        pytest.param(gated, 3 * 8, 0, id="views count once"),
        pytest.param(
            dropping, 3 * 8, 0, id="what is dropped before the backward pass is not counted"
        ),
        pytest.param(
            lambda layer, x: layer(x), 0, 0, id="an input that is a view counts by itself"
        ),
        pytest.param(cast_twice, 3 * 5, 6 * 5, id="a cast of a cast is a cast"),
    ],
)
def test_numbers_that_are_kept(run, activations, casts):
    layer, images = nn.Linear(6, 8), torch.randn(100, 6)
    make = OPTIMIZERS["sgd"][0]
    got = account(layer, make(layer.parameters()), lambda x: run(layer, x).sum(), images[10:13])
    assert (got.inputs, got.activations, got.casts) == (4 * 3 * 6, 4 * activations, 4 * casts)


def test_frozen_parameters_and_buffers_are_parameters_and_need_no_more():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    got = account(
        model, OPTIMIZERS["adam"][0](trained), lambda x: model(x).sum(), torch.randn(3, 6)
    )
    n = sum(p.numel() for p in trained)
    assert (
        got.parameters == 4 * (n + 6 * 8 + 8) + 4 * (8 + 8) + 8
    )  # running mean, variance; a count, int64
    assert (got.gradients, got.optimizer) == (4 * n, 8 * n + 4 * 4)
    assert got.activations == 4 * (
        3 * 8 + 8 + 8 + 3 * 8
    )  # of the norm: input, mean, deviation, output


def test_it_makes_one_step_like_any_other():
    ours, twin = models.mlp((7, 5, 3)), models.mlp((7, 5, 3))
    make = OPTIMIZERS["adam"][0]
    x, y = data_of((7, 3), 4)
    account(ours, make(ours.parameters()), lambda x, y: F.cross_entropy(ours(x), y), x, y)
    F.cross_entropy(twin(x), y).backward()
    make(twin.parameters()).step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), twin.parameters(), strict=True))
    assert Memory(1, 2, 4, 8, 16, 32).total == 63


NETWORKS = {
    "mlp": (lambda: models.mlp((31, 17, 9, 3)), lambda: torch.randn(13, 31)),
    "lenet": (models.lenet, lambda: torch.randn(3, 1, 28, 28)),
    "encoder": (
        lambda: models.Encoder(layers=2, hidden=24, heads=3, vocabulary=50, positions=16),
        lambda: torch.randint(0, 50, (5, 11)),
    ),
}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_profiler_says_that_the_forward_pass_leaves_as_much(name, dtype):
    model, x = (make() for make in NETWORKS[name])
    y = torch.randint(0, 3, (len(x),))

    def run(x, y):
        with torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext():
            return F.cross_entropy(model(x), y)

    run(x, y)  # what a first run allocates for good
    with torch.profiler.profile(profile_memory=True) as profile:
        loss = run(x, y)
    left = sum(event.self_cpu_memory_usage for event in profile.key_averages())
    got = account(model, OPTIMIZERS["adam"][0](model.parameters()), run, x, y)
    assert got.activations + got.casts == left - loss.nbytes
    assert (got.casts > 0) == (dtype is not None)


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_the_allocator_of_a_gpu_says_the_same(dtype):
    widths, batch = (
        (512, 1024, 256, 128),
        256,
    )  # all but biases and single numbers fill whole blocks
    x, y = data_of(widths, batch, device="cuda")
    warm = torch.randn(
        64, 64, device="cuda", requires_grad=True
    )  # libraries take memory of their own
    for low in (torch.float32, torch.bfloat16, torch.float16):
        (warm.to(low) @ warm.to(low)).sum().backward()
    del warm

    def run(x, y):
        with torch.autocast("cuda", dtype) if dtype else contextlib.nullcontext():
            return F.cross_entropy(model(x), y)

    def grown(call):
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() - before, result

    measured = {}
    measured["parameters"], model = grown(lambda: models.mlp(widths).cuda())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    run(x, y).backward()
    optimizer.zero_grad()
    measured["forward"], loss = grown(lambda: run(x, y))
    loss.backward()
    del loss
    measured["gradients"] = -grown(optimizer.zero_grad)[0]
    run(x, y).backward()
    measured["optimizer"], _ = grown(optimizer.step)
    fresh = torch.optim.Adam(model.parameters(), lr=1e-3)
    got = account(model, fresh, run, x, y)
    for part, wanted, tensors in (
        ("parameters", got.parameters, 6), ("forward", got.activations + got.casts, 12),
        ("gradients", got.gradients, 6),
        ("optimizer", got.optimizer - 4 * 6, 12),  # Adam counts its steps in six tensors on the CPU
    ):  # fmt: skip
        assert 0 <= measured[part] - wanted <= 512 * tensors, part
