"""Master weights against a float32 optimizer that is stepped by hand, bit for bit; and what a network loses
that has none.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ed_lib import models, training
from ed_lib.precision.master_weights import MasterWeights
from ed_lib.precision.scaler import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.003),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.003, weight_decay=0.1),
}
SHAPES = [(7, 5), (3,), (), (2, 3, 4)]


def low_parameters(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(s, generator=generator).to(DEVICE, dtype).requires_grad_() for s in SHAPES]
    return [*made, torch.randn(5, generator=generator).to(DEVICE).requires_grad_()]  # the last is float32


def put_gradients(parameters, seed):
    """Random gradients of very different sizes, in each parameter's dtype."""
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        size = 10.0 ** torch.randint(-6, 3, p.shape, generator=generator)
        p.grad = (torch.randn(p.shape, generator=generator) * size).to(p)


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


# ---- against an optimizer stepped by hand ----


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_a_float32_optimizer_with_rounded_gradients(name, dtype):
    parameters = low_parameters(dtype)
    by_hand = [p.detach().float().clone().requires_grad_() for p in parameters]
    ours, reference = MasterWeights(parameters, OPTIMIZERS[name]), OPTIMIZERS[name](by_hand)
    for i in range(25):
        ours.zero_grad()
        put_gradients(parameters, i)
        for p, copied in zip(parameters, by_hand, strict=True):
            copied.grad = p.grad.float()
        ours.step()
        reference.step()
        assert_same(ours.masters, by_hand)
        assert_same(parameters, [copied.to(p.dtype) for p, copied in zip(parameters, by_hand, strict=True)])
    assert [p.dtype for p in parameters] == [dtype] * 4 + [torch.float32]


def test_a_float32_parameter_is_its_own_master_and_a_frozen_one_has_none():
    model = nn.Sequential(nn.Linear(4, 3).half(), nn.LayerNorm(3), nn.Linear(3, 2).half())
    model[2].weight.requires_grad_(False)
    made = MasterWeights(model, OPTIMIZERS["sgd"])
    assert made.masters[2] is model[1].weight and made.masters[3] is model[1].bias
    assert len(made.masters) == 5 and all(m.dtype == torch.float32 for m in made.masters)
    assert all(isinstance(m, nn.Parameter) for m in made.masters)


@pytest.mark.gpu
def test_a_gradient_is_pulled_once_and_again_when_it_changes():
    p = torch.ones(3, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    ours = MasterWeights([p], lambda masters: torch.optim.SGD(masters, lr=1.0))
    (master,) = ours.masters
    (p * 0.5).sum().backward()
    for _ in range(3):
        assert torch.equal(ours.param_groups[0]["params"][0].grad, torch.full_like(master, 0.5))
    master.grad.mul_(4)  # as a scaler or clipping would
    ours.pull_gradients()
    assert torch.equal(master.grad, torch.full_like(master, 2.0))
    (p * 0.25).sum().backward()  # accumulates in place
    ours.pull_gradients()
    assert torch.equal(master.grad, torch.full_like(master, 0.75))
    p.grad = torch.full_like(p, 8.0)
    ours.step()
    assert torch.equal(master, torch.full_like(master, -7.0)) and master.grad is None
    assert torch.equal(p.grad, torch.full_like(p, 8.0))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_zeroed_by_the_model_are_gone_from_the_masters_too(set_to_none):
    model = models.mlp((3, 2)).half()
    ours = MasterWeights(model, lambda masters: torch.optim.SGD(masters, lr=1.0))
    put_gradients(model.parameters(), 0)
    ours.pull_gradients()  # and a scaler skips the step
    model.zero_grad(set_to_none=set_to_none)
    before = copy.deepcopy(ours.masters)
    ours.step()
    assert_same(ours.masters, before)
    put_gradients(model.parameters(), 0)
    ours.zero_grad()
    assert all(tensor.grad is None for tensor in (*model.parameters(), *ours.masters))


# ---- what a network without them loses ----


@pytest.mark.oracle
@pytest.mark.parametrize("dtype, last", [(torch.float16, 11), (torch.bfloat16, 8)])
def test_without_masters_small_updates_vanish(dtype, last):
    exponents = torch.arange(4, 16)  # each weight, at 1, gets 32 updates of 2⁻⁴, 2⁻⁵, …
    updates = 2.0 ** -exponents.float()
    weights = {}
    for name in ("alone", "with masters"):
        p = torch.ones(12, dtype=dtype, requires_grad=True)
        make = lambda params: torch.optim.SGD(params, lr=1.0)  # noqa: E731
        optimizer = make([p]) if name == "alone" else MasterWeights([p], make)
        for _ in range(32):
            optimizer.zero_grad()
            p.grad = -updates.to(dtype)
            optimizer.step()
        weights[name] = p.detach().float()
    assert torch.equal(optimizer.masters[0], 1 + 32 * updates)
    assert torch.equal(weights["alone"] == 1, exponents >= last)  # 2⁻¹¹ is half a step of float16, at 1
    assert int((weights["alone"] == 1).sum()) == 16 - last
    assert torch.equal(weights["with masters"], (1 + 32 * updates).to(dtype).float())
    stalled = 32 * updates <= 2.0**-last  # these have not moved by half a step in all
    assert torch.equal(weights["with masters"] == 1, stalled) and int(stalled.sum()) == 11 - last


@pytest.mark.oracle
@pytest.mark.gpu
def test_adam_on_float16_weights_divides_by_zero_and_on_masters_does_not():
    assert torch.tensor(1e-8, dtype=torch.float16) == 0
    p = torch.ones(4, dtype=torch.float16, requires_grad=True)
    gradients = torch.tensor([1e-4, -1e-4, 0.0, 0.5], dtype=torch.float16)
    alone, twin = torch.optim.Adam([p]), torch.ones(4, dtype=torch.float16, requires_grad=True)
    with_masters = MasterWeights([twin], torch.optim.Adam)
    p.grad, twin.grad = gradients.clone(), gradients.clone()
    alone.step()
    with_masters.step()
    assert p[0] == -torch.inf and p[1] == torch.inf and p[2].isnan() and p[3].isfinite()
    assert twin.isfinite().all() and with_masters.masters[0][2] == 1
    torch.testing.assert_close(with_masters.masters[0], torch.tensor([0.999, 1.001, 1.0, 0.999]))


# ---- with a scaler ----


def run(scaler, clip, steps=12, name="adam"):
    model = models.mlp((6, 16, 3), seed=1).to(DEVICE, torch.float16)
    optimizer = MasterWeights(model, OPTIMIZERS[name])
    generator = torch.Generator().manual_seed(2)
    skipped = 0
    for i in range(steps):
        x = torch.randn(8, 6, generator=generator).to(DEVICE, torch.float16)
        y = torch.randint(0, 3, (8,), generator=generator).to(DEVICE)
        before = copy.deepcopy(optimizer.masters)
        loss = F.cross_entropy(model(x).float(), y) * (1e6 if i == 5 else 1)  # overflows float16 at i = 5
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(optimizer.masters, 0.1)
        scaler.step(optimizer)
        scaler.update()
        skipped += all(torch.equal(a, b) for a, b in zip(before, optimizer.masters, strict=True))
    return model, optimizer, scaler.state_dict(), skipped


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_both_scalers_step_it_alike(name, clip):
    arguments = dict(init_scale=1024.0, growth_interval=4)
    model, ours, state, skipped = run(GradScaler(DEVICE, **arguments), clip, name=name)
    twin, theirs, wanted, twin_skipped = run(torch.amp.GradScaler(DEVICE, **arguments), clip, name=name)
    assert state == wanted and skipped == twin_skipped == 1
    assert_same(ours.masters, theirs.masters)
    assert_same(model.parameters(), twin.parameters())
    assert all(p.dtype == torch.float16 and p.isfinite().all() for p in model.parameters())


@pytest.mark.oracle
@pytest.mark.gpu
def test_scaled_it_is_the_optimizer_stepped_by_hand_with_unscaled_gradients():
    model = models.mlp((6, 16, 3), seed=1).to(DEVICE, torch.float16)
    twin = copy.deepcopy(model)
    by_hand = [p.detach().float().requires_grad_() for p in twin.parameters()]
    ours, reference = MasterWeights(model, OPTIMIZERS["adam"]), OPTIMIZERS["adam"](by_hand)
    scaler = GradScaler(DEVICE, init_scale=512.0)
    x, y = torch.randn(8, 6, dtype=torch.float16, device=DEVICE), torch.arange(8, device=DEVICE) % 3
    for _ in range(6):
        training.optimizer_step(F.cross_entropy(model(x).float(), y), ours, scaler)
        twin.zero_grad()
        (F.cross_entropy(twin(x).float(), y) * 512).backward()
        for p, master in zip(twin.parameters(), by_hand, strict=True):
            master.grad = p.grad.float() / 512
        reference.step()
        with torch.no_grad():
            for p, master in zip(twin.parameters(), by_hand, strict=True):
                p.copy_(master)
        assert_same(ours.masters, by_hand)
        assert_same(model.parameters(), twin.parameters())
