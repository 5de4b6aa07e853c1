"""Scans against the loop, in float64 to 1e-10, with their gradients; and the networks made of
them.
"""

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


def loop(a, b, h):
    return torch.stack([h := gain * h + gift for gain, gift in zip(a, b, strict=True)])


@pytest.mark.oracle
@given(steps=STEPS, shape=SHAPE)
def test_a_scan_is_the_loop(steps, shape):
    a, b, h = leaves = drawn(steps, shape)
    right, found = loop(a, b, h), scans.solve(a, b, h)
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    dy = torch.randn(right.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for ours, autograd in zip(
        torch.autograd.grad(found, leaves, dy), torch.autograd.grad(right, leaves, dy), strict=True
    ):
        torch.testing.assert_close(ours, autograd, rtol=1e-9, atol=1e-9)


@pytest.mark.oracle
def test_a_mingru_forgets_and_learns_by_the_same_shares():
    torch.manual_seed(0)
    net = scans.MinGRU(3, 5).double()
    x, h0 = torch.randn(7, 2, 3, dtype=torch.float64), torch.randn(1, 2, 5, dtype=torch.float64)
    a, b = net.recurrence(net.inputs(x))
    assert ((0 < a) & (a < 1)).all()
    output, last = net(x, h0)
    torch.testing.assert_close(output, loop(a, b, h0[0]), rtol=0, atol=1e-12)
    assert torch.equal(last, output[-1:])
    constant = net.inputs.bias.detach()[-5:].expand(2, 5)[None]  # h̃, if x is 0
    output, _ = net(torch.zeros_like(x), constant)
    torch.testing.assert_close(output, constant.expand_as(output), msg="a state that is h̃ stays h̃")


def test_a_signed_gate_turns_the_state_over_or_keeps_it():
    """Where z is 1 the state changes its sign, where z is 0 it stays; what comes in is a minGRU's."""
    torch.manual_seed(0)
    signed, plain = scans.SignedMinGRU(3, 5).double(), scans.MinGRU(3, 5).double()
    gates = torch.randn(7, 2, 10, dtype=torch.float64)
    (a, b), (kept, same) = signed.recurrence(gates), plain.recurrence(gates)
    assert torch.equal(b, same)
    torch.testing.assert_close(a, 2 * kept - 1, rtol=0, atol=1e-15)
    sure = torch.tensor([[[90.0, 1.0]], [[-90.0, 1.0]]])
    assert scans.SignedMinGRU.recurrence(sure)[0].flatten().tolist() == [-1.0, 1.0]
    x, h0 = torch.randn(4, 2, 3, dtype=torch.float64), torch.randn(1, 2, 5, dtype=torch.float64)
    output, _ = signed(x, h0)
    a, b = signed.recurrence(signed.inputs(x))
    torch.testing.assert_close(output, loop(a, b, h0[0]), rtol=0, atol=1e-12)


def test_a_second_derivative_is_refused():
    a, b, h = drawn(4, [2])
    (g,) = torch.autograd.grad(scans.solve(a, b, h).square().sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()
