"""Adam with averages of eight bits: its codes, against torch's Adam, and against torchao's where it is."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import few_bits
from benchmarks.few_bits import Adam8bit, bytes_of, decode, encode, numbers


@pytest.mark.parametrize("kind", ("dynamic", "linear"))
@pytest.mark.parametrize("signed", [True, False])
def test_there_are_256_numbers_in_order_with_zero_and_one(kind, signed):
    found = numbers(kind, signed)
    assert found.shape == (256,) and (found.diff() > 0).all()
    assert 0 in found and 1 in found and (found[0] < -0.9) == signed


@pytest.mark.oracle
def test_dynamic_numbers_are_half_in_each_decade_of_those_in_the_one_above():
    for signed, most in ((True, 64), (False, 128)):
        found = numbers("dynamic", signed)
        decades = [((found > 10.0 ** -(n + 1)) & (found < 10.0**-n)).sum() for n in range(7)]
        assert decades == [most // 2**n for n in range(7)]
        assert 1e-7 < found[found > 0].min() < 1e-6


@pytest.mark.oracle
@given(st.integers(1, 50), st.integers(1, 20), st.sampled_from(("dynamic", "linear")), st.integers(0, 1000))
def test_codes_are_the_nearest(n, block, kind, seed):
    x, table = torch.randn(n, generator=torch.Generator().manual_seed(seed)) ** 3, numbers(kind, True)
    codes, scale = encode(x, table, block)
    found = decode(codes, scale, table, x)
    scales = scale.repeat_interleave(block)[:n]
    best = (x[:, None] - scales[:, None] * table).abs().amin(1)
    assert torch.allclose((x - found).abs(), best, rtol=1e-4, atol=1e-7)
    assert codes.numel() == -(-n // block) * block


def test_zeros_stay_zeros_and_the_largest_of_a_block_is_exact():
    x = torch.tensor([[0.0, 0.0, 0.0], [1.0, -7.25, 0.3]])
    for kind in ("dynamic", "linear"):
        table = numbers(kind, True)
        assert torch.equal(decode(*encode(x[0], table, 2), table, x[0]), x[0])
        size = decode(*encode(x[1].abs(), numbers(kind, False), 3), numbers(kind, False), x[1])
        assert size[1] == 7.25


def twins(theirs, steps=20, shape=(64, 128), **options):
    """Two copies of a parameter, moved by the same gradients."""
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=draw)
    p, q = start.clone().requires_grad_(), start.clone().requires_grad_()
    ours, theirs = Adam8bit([p], 1e-2, **options), theirs([q])
    for _ in range(steps):
        g = torch.randn(shape, generator=draw) * torch.linspace(0.01, 1, shape[1])
        p.grad, q.grad = g, g.clone()
        ours.step()
        theirs.step()
    return p.detach(), q.detach(), start


@pytest.mark.oracle
def test_without_rounding_it_is_adam(monkeypatch):
    monkeypatch.setattr(few_bits, "encode", lambda x, table, block: (x.clone(), None))
    monkeypatch.setattr(few_bits, "decode", lambda x, scale, table, like: x)
    p, q, _ = twins(lambda ps: torch.optim.Adam(ps, 1e-2))
    assert torch.allclose(p, q, rtol=1e-5, atol=1e-7)


@pytest.mark.oracle
def test_with_rounding_it_is_nearly_adam_and_linear_codes_are_worse():
    off = {}
    for kind in ("dynamic", "linear"):
        p, q, start = twins(lambda ps: torch.optim.Adam(ps, 1e-2), kind=kind, block=64)
        off[kind] = float((p - q).norm() / (q - start).norm())
    assert off["dynamic"] < 0.05 and off["linear"] > 3 * off["dynamic"], off


@pytest.mark.oracle
def test_it_moves_as_torchaos():
    from torchao import optim

    with torch.compiler.set_stance("force_eager"):  # else it spends 20 seconds on compiling
        p, q, start = twins(lambda ps: optim.Adam8bit(ps, 1e-2, block_size=256), block=256)
    assert float((p - q).norm() / (q - start).norm()) < 1e-3


@pytest.mark.oracle
@pytest.mark.parametrize("n", [1, 10, 4095, 4096, 4097, 9999, 70_000])
def test_it_keeps_two_bytes_a_weight_and_the_scales_and_of_few_weights_what_adam_keeps(n):
    p = torch.ones(n, requires_grad=True)
    adams = Adam8bit([p]), torch.optim.Adam([p])
    adams[0].step()  # no gradient: nothing to do
    assert bytes_of(adams[0]) == 0
    p.grad = torch.randn(n)
    for adam in adams:
        adam.step()
    theirs, blocks = bytes_of(adams[1]), -(-n // 2048)
    assert bytes_of(adams[0]) == (theirs if n < 4096 else 2 * blocks * (2048 + 4)) <= theirs


@pytest.mark.oracle
@pytest.mark.parametrize("n", [2, 5000])
def test_a_huge_gradient_does_not_end_it_and_nan_stays_where_it_is(n):
    for bad, spoiled in ((1e20, 0), (torch.nan, 1)):
        p, q = torch.ones(n, requires_grad=True), torch.ones(n, requires_grad=True)
        ours, theirs = Adam8bit([p], 0.1), torch.optim.Adam([q], 0.1)
        for step in range(3):
            p.grad, q.grad = torch.ones(n), torch.ones(n)
            p.grad[0] = q.grad[0] = 1 if step else bad
            ours.step()
            theirs.step()
        assert int((~p.isfinite()).sum()) == int((~q.isfinite()).sum()) == spoiled
