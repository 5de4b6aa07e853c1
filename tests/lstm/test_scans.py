"""Scans against the loop, in float64 to 1e-10, with their gradients; and the networks made of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ed_lib.lstm import scans

STEPS, SHAPE = st.integers(1, 40), st.lists(st.integers(1, 4), max_size=2)


def drawn(steps, shape, seed=0):
    """a, b and h of a recurrence, with forgetting, growth and signs."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (steps, *shape), (steps, *shape), tuple(shape)
    options = dict(generator=generator, dtype=torch.float64, requires_grad=True)
    return [torch.randn(size, **options) for size in sizes]


@pytest.mark.oracle
@pytest.mark.parametrize("scan", scans.SCANS)
@given(steps=STEPS, shape=SHAPE)
def test_every_scan_is_the_loop(scan, steps, shape):
    a, b, h = leaves = drawn(steps, shape)
    right, found = scans.step_by_step(a, b, h), scans.solve(a, b, h, scan)
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    dy = torch.randn(right.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for ours, autograd in zip(
        torch.autograd.grad(found, leaves, dy), torch.autograd.grad(right, leaves, dy), strict=True
    ):
        torch.testing.assert_close(ours, autograd, rtol=1e-9, atol=1e-9)


@pytest.mark.oracle
@pytest.mark.parametrize("scan, rounds", [("doubling", 5), ("halving", 5)])
def test_rounds_are_logarithmic(scan, rounds, monkeypatch):
    """Of 32 steps: 5 rounds of doubling, 5 halvings; counted by what is joined."""
    joined, cat = [], torch.cat
    monkeypatch.setattr(torch, "cat", lambda some: joined.append(1) or cat(some))
    a, b, h = drawn(32, [2])
    scans.SCANS[scan](a, b, h)
    assert len(joined) == rounds * (2 if scan == "doubling" else 1)


@pytest.mark.oracle
@pytest.mark.parametrize("network", [scans.MinGRU, scans.MinLSTM])
def test_networks_forget_and_learn_by_the_same_shares_under_every_scan(network):
    torch.manual_seed(0)
    net = network(3, 5).double()
    x, h0 = torch.randn(7, 2, 3, dtype=torch.float64), torch.randn(1, 2, 5, dtype=torch.float64)
    a, b = net.recurrence(net.inputs(x))
    h, right = h0[0], []
    for t in range(7):
        h = a[t] * h + b[t]
        right.append(h)
    assert ((0 < a) & (a < 1)).all()
    for net.scan in scans.SCANS:
        output, last = net(x, h0)
        torch.testing.assert_close(output, torch.stack(right), rtol=0, atol=1e-12)
        assert torch.equal(last, output[-1:])
    constant = net.inputs.bias.detach()[-5:].expand(2, 5)[None]  # h̃, if x is 0
    output, _ = net(torch.zeros_like(x), constant)
    torch.testing.assert_close(output, constant.expand_as(output), msg="a state that is h̃ stays h̃")


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_shares_of_gates_that_underflow(dtype):
    """Where σ(f) and σ(i) are 0 their shares are not: f' = 1 / (1 + e^(log σ(i) − log σ(f)))."""
    gates = torch.tensor([[-90.0, -90.0, 1.0], [-18.0, -16.5, 1.0], [-200.0, -90.0, 1.0], [60.0, 90.0, 1.0]])
    gates = gates.to(dtype).requires_grad_()
    f, i = gates.detach().double()[:, :2].sigmoid().log().T
    f, i = (
        torch.where(log.isinf(), x, log) for log, x in zip((f, i), gates.detach().double().T, strict=False)
    )
    a, b = scans.MinLSTM.recurrence(gates)
    right = torch.stack([1 / (1 + (i - f).exp()), 1 / (1 + (f - i).exp())], 1)
    found = torch.cat([a, b], 1).detach().double()
    torch.testing.assert_close(found, right, rtol=0, atol=2 * torch.finfo(dtype).eps)
    (a.sum() + 2 * b.sum()).backward()
    assert gates.grad.isfinite().all()


def test_a_second_derivative_is_refused():
    a, b, h = drawn(4, [2])
    (g,) = torch.autograd.grad(scans.solve(a, b, h).square().sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()
