"""Every rung against torch.nn.LSTM: outputs, states and all gradients, in float64 to 1e-10."""

import gc
import os
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from ed_lib.lstm import LSTM, RUNGS, lstm_on_gpu  # noqa: E402
from ed_lib.lstm.ladder import slots  # noqa: E402

SIZE = st.integers(1, 7)
EVERY = pytest.mark.parametrize("rung", RUNGS)
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def pair(rung, inputs, hidden, layers=1, combine=2, dtype=torch.float64, seed=0):
    """torch.nn.LSTM, and ours with the same weights."""
    torch.manual_seed(seed)
    theirs = torch.nn.LSTM(inputs, hidden, layers, dtype=dtype)
    return theirs, LSTM.from_torch(theirs, rung=rung, combine=combine)


def everything(module, x, state=None):
    """Output, last states, and the gradients of a function of all three with respect to all that
    came in.
    """
    output, (h, c) = module(x, state)
    of_c = (c**2 * torch.linspace(-1, 1, c.numel()).view_as(c)).sum()
    loss = (output**2).sum() + (1.3 * h).sin().sum() + of_c
    return [output, h, c, *torch.autograd.grad(loss, [x, *(state or ()), *module.parameters()])]


def assert_equal(found, right):
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def draw(shape, seed, grad=True):
    values = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values.requires_grad_(grad)


@pytest.mark.oracle
@EVERY
@settings(max_examples=25)
@given(
    steps=st.integers(1, 9), batch=SIZE, inputs=SIZE, hidden=SIZE, layers=st.integers(1, 4),
    combine=st.integers(1, 11), given_state=st.booleans(),
)  # fmt: skip
def test_a_rung_equals_pytorch(rung, steps, batch, inputs, hidden, layers, combine, given_state):
    theirs, ours = pair(rung, inputs, hidden, layers, combine, seed=steps)
    x, shape = draw((steps, batch, inputs), 1), (layers, batch, hidden)
    state = (draw(shape, 2), draw(shape, 3)) if given_state else None
    assert_equal(everything(ours, x, state), everything(theirs, x, state))


@pytest.mark.oracle
@EVERY
def test_a_rung_equals_pytorch_at_larger_sizes(rung):
    theirs, ours = pair(rung, 48, 65, 2)
    x = draw((33, 17, 48), 1)
    assert_equal(everything(ours, x), everything(theirs, x))


@pytest.mark.oracle
@pytest.mark.parametrize("rung", ["baseline", "wavefront"])
def test_gradients_by_differences(rung):
    _, ours = pair(rung, 3, 2, 2)

    def function(x, h, c, *weights):
        named = dict(zip(dict(ours.named_parameters()), weights, strict=True))
        output, (h, c) = torch.func.functional_call(ours, named, (x, (h, c)))
        return output, h, c

    leaves = draw((3, 2, 3), 1), draw((2, 2, 2), 2), draw((2, 2, 2), 3)
    weights = [p.detach().clone().requires_grad_() for p in ours.parameters()]
    torch.autograd.gradcheck(function, (*leaves, *weights))


@EVERY
def test_nothing_that_came_in_is_changed(rung):
    _, ours = pair(rung, 3, 4, 2)
    x, *state = (
        draw(shape, n, grad=False) for n, shape in enumerate([(5, 2, 3), (2, 2, 4), (2, 2, 4)])
    )
    kept = [tensor.clone() for tensor in (x, *state, *ours.parameters())]
    first, (h, _) = ours(x, state)
    second, _ = ours(x, state)
    h.detach().zero_()  # a copy: the output stays
    assert torch.equal(first, second)
    assert all(map(torch.equal, (x, *state, *ours.parameters()), kept))


@pytest.mark.oracle
@EVERY
def test_inputs_may_lie_in_memory_as_they_like(rung):
    theirs, ours = pair(rung, 3, 4)
    x = draw((2, 3, 6), 1, grad=False).permute(2, 0, 1)  # (6, 2, 3)
    state = tuple(draw((2, 1, 4), seed, grad=False).transpose(0, 1) for seed in (2, 3))  # (1, 2, 4)
    assert_equal(ours(x, state)[:1], theirs(x, state)[:1])


@EVERY
@pytest.mark.parametrize("layers", [1, 2])
def test_training_leaves_no_memory_behind_and_the_output_is_no_part_of_what_is_kept(rung, layers):
    _, ours = pair(rung, 3, 4, layers)
    output, state = ours(draw((5, 2, 3), 1))
    output.mul_(2).sum().backward()  # autograd refuses this for a view of its own memory
    output, state = ours(draw((5, 2, 3), 1))
    kept = weakref.ref(output)
    gc.disable()  # whatever lives on would be held by a cycle
    try:
        del output, state
        assert kept() is None
    finally:
        gc.enable()


MARKS = [pytest.mark.gpu, pytest.mark.skipif(lstm_on_gpu.triton is None, reason="needs Triton")]


@pytest.mark.oracle
@pytest.mark.parametrize("path", ["plain", pytest.param("triton", marks=MARKS)])
@pytest.mark.parametrize("rung", ["fused_pointwise", "wavefront"])
def test_weights_and_gradients_may_lie_in_memory_as_they_like(rung, path, monkeypatch):
    """A kernel that takes every array for contiguous would be wrong here, and its plain twin
    right.
    """
    monkeypatch.setattr(lstm_on_gpu, "cell", getattr(lstm_on_gpu, f"{path}_cell"))
    theirs, ours = pair(rung, 3, 4, 2)
    device = "cuda" if path == "triton" and torch.cuda.is_available() else "cpu"
    x, like = draw((5, 2, 3), 1).to(device), draw((2, 4, 2), 2, grad=False).to(device)
    apart = {}  # biases whose numbers lie two apart
    for name, p in theirs.named_parameters():
        wide = torch.zeros(*p.shape, 2, dtype=p.dtype)
        wide[..., 0] = p.detach()
        apart[name] = wide.to(device)[..., 0].requires_grad_()
    found = []
    for module in (ours.to(device), theirs.to(device)):
        output, (h, c) = torch.func.functional_call(module, apart, (x,))
        loss = (
            (output**2).sum()
            + (h.transpose(1, 2) * like).sum()
            + (c.transpose(1, 2) * like.cos()).sum()
        )
        found.append([output, h, c, *torch.autograd.grad(loss, [x, *apart.values()])])
    assert_equal(*found)


@pytest.mark.oracle
@EVERY
@pytest.mark.parametrize("size", [1e-8, 1e-6, 1e-3, 1.0, 100.0])
def test_small_and_large_inputs_keep_their_digits(rung, size):
    """Forward, and the gradients of small outputs: without biases, of h in the order of x."""
    exact, ours = pair(rung, 6, 20)
    for name, weight in exact.named_parameters():
        torch.nn.init.zeros_(weight) if "bias" in name else None
    ours.load_state_dict(exact.state_dict())
    x, grads = draw((5, 2, 6), 1, grad=False), []
    found, right = ours.float()(size * x.float())[0], exact(size * x)[0]
    assert (found - right).abs().max() < 2e-6 * right.abs().max()
    for y, one in ((found, ours), (right, exact)):
        grads += torch.autograd.grad((y / size).square().sum(), one.weight_hh_l0)
    assert (grads[0] - grads[1]).abs().max() < 1e-5 * grads[1].abs().max()


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types(dtype):
    theirs, ours = pair("fused_pointwise", 8, 16, 2, dtype=torch.float64)
    x = draw((6, 4, 8), 1, grad=False)
    output, (h, c) = ours.to(dtype)(x.to(dtype))
    assert output.dtype == h.dtype == c.dtype == dtype
    assert (output.double() - theirs(x)[0]).abs().max() < 16 * torch.finfo(dtype).eps


@pytest.mark.oracle
def test_the_same_parameters_by_the_same_names():
    theirs, ours = pair("baseline", 3, 4, 2)
    wanted = [(name, p.shape) for name, p in theirs.named_parameters()]
    assert [(name, p.shape) for name, p in ours.named_parameters()] == wanted
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():  # copies: ours do not follow
        theirs.weight_ih_l0.add_(1)
    assert not torch.equal(theirs.weight_ih_l0, ours.weight_ih_l0)


@pytest.mark.oracle
def test_fresh_weights_are_drawn_as_pytorch_draws_them():
    drawn = []
    for make in (LSTM, torch.nn.LSTM):
        torch.manual_seed(1)
        drawn.append(make(3, 25, 2).parameters())
    assert all(map(torch.equal, *drawn))


@given(blocks=st.integers(1, 20), layers=st.integers(1, 6))
def test_the_schedule_runs_each_block_once_and_never_too_early(blocks, layers):
    schedule = slots(blocks, layers)
    when = {cell: number for number, slot in enumerate(schedule) for cell in slot}
    assert len(when) == sum(map(len, schedule)) == blocks * layers
    for (layer, block), number in when.items():
        needed = [(layer, block - 1)] * bool(block) + [(layer - 1, block)] * bool(layer)
        assert all(when[before] < number for before in needed)


@pytest.mark.oracle
def test_the_schedule_of_the_published_run():
    assert len(slots(100, 4)) == 103


@pytest.mark.oracle
@pytest.mark.gpu
@GPU
@EVERY
def test_a_rung_on_a_gpu(rung):
    theirs, ours = pair(rung, 48, 65, 3)
    theirs, ours = theirs.cuda(), ours.cuda()
    x = draw((33, 17, 48), 1).detach().cuda().requires_grad_()
    for _ in range(5):  # streams that race do so now and then
        (output, (h, c)), (wanted, (h_n, c_n)) = ours(x), theirs(x)
        assert_equal((output, h, c), (wanted, h_n, c_n))
    back = torch.autograd.grad((output**2).sum(), [x, *ours.parameters()])
    assert_equal(back, torch.autograd.grad((wanted**2).sum(), [x, *theirs.parameters()]))


@pytest.mark.gpu
@GPU
@EVERY
def test_a_rung_as_a_cuda_graph(rung):
    _, ours = pair(rung, 32, 64, 3, dtype=torch.float32)
    ours = ours.cuda()
    x, kept = torch.randn(20, 8, 32, device="cuda"), []
    with torch.no_grad():
        replay = lstm_on_gpu.capture(lambda: kept.append(ours(x)[0]))
        for _ in range(3):
            x.normal_()
            replay()
            torch.testing.assert_close(kept[-1], ours(x)[0])
