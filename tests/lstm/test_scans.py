"""Scans against the loop, in float64 to 1e-10, with their gradients; and the networks made of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ed_lib.lstm import minimal, scans

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


@given(steps=STEPS, chunk=st.integers(1, 50))
def test_chunks_of_any_length(steps, chunk):
    a, b, h = drawn(steps, [3])
    found = scans.chunked(a, b, h, chunk)
    torch.testing.assert_close(found, scans.step_by_step(a, b, h), rtol=1e-10, atol=1e-10)


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
@pytest.mark.parametrize("network", [minimal.MinGRU, minimal.MinLSTM])
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
