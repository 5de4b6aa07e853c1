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

from ed_lib.lstm import BEYOND, LSTM, RUNGS, kernels  # noqa: E402
from ed_lib.lstm.wavefront import slots  # noqa: E402

SIZE = st.integers(1, 7)
CLOSE = dict(rtol=0, atol=1e-10)


def pair(rung, inputs, hidden, layers=1, bidirectional=False, combine=2, dtype=torch.float64, seed=0):
    """torch.nn.LSTM, and ours with the same weights."""
    torch.manual_seed(seed)
    theirs = torch.nn.LSTM(inputs, hidden, layers, bidirectional=bidirectional, dtype=dtype)
    return theirs, LSTM.from_torch(theirs, rung=rung, combine=combine)


def everything(module, x, state):
    """Output, last states, and the gradients of a function of all three with respect to all that came in."""
    output, (h, c) = module(x, state)
    of_c = (c**2 * torch.linspace(-1, 1, c.numel()).view_as(c)).sum()
    loss = (output**2).sum() + (1.3 * h).sin().sum() + of_c
    wanted = [x, *(state or ()), *module.parameters()]
    return [output, h, c, *torch.autograd.grad(loss, wanted)]


def draw(shape, seed, grad=True):
    values = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values.requires_grad_(grad)


@pytest.mark.oracle
@pytest.mark.parametrize("rung", (*RUNGS, *BEYOND))
@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    steps=st.integers(1, 9), batch=SIZE, inputs=SIZE, hidden=SIZE, layers=st.integers(1, 4),
    bidirectional=st.booleans(), combine=st.integers(1, 11), given_state=st.booleans(),
)  # fmt: skip
def test_a_rung_equals_pytorch(
    rung, steps, batch, inputs, hidden, layers, bidirectional, combine, given_state
):
    bidirectional &= rung not in BEYOND
    theirs, ours = pair(rung, inputs, hidden, layers, bidirectional, combine, seed=steps)
    x, state = draw((steps, batch, inputs), 1), None
    if given_state:
        shape = (layers * (2 if bidirectional else 1), batch, hidden)
        state = draw(shape, 2), draw(shape, 3)
    for a, b in zip(everything(ours, x, state), everything(theirs, x, state), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.oracle
@pytest.mark.parametrize("rung", (*RUNGS, *BEYOND))
def test_a_rung_equals_pytorch_at_larger_sizes(rung):
    theirs, ours = pair(rung, 48, 65, 2)
    x = draw((33, 17, 48), 1)
    for a, b in zip(everything(ours, x, None), everything(theirs, x, None), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.oracle
@pytest.mark.parametrize("rung", ["baseline", "wavefront", "batched_wavefront"])
def test_gradients_by_differences(rung):
    _, ours = pair(rung, 3, 2, 2)

    def function(x, h, c, *weights):
        named = dict(zip(dict(ours.named_parameters()), weights, strict=True))
        output, (h, c) = torch.func.functional_call(ours, named, (x, (h, c)))
        return output, h, c

    leaves = draw((3, 2, 3), 1), draw((2, 2, 2), 2), draw((2, 2, 2), 3)
    weights = [p.detach().clone().requires_grad_() for p in ours.parameters()]
    torch.autograd.gradcheck(function, (*leaves, *weights))


@pytest.mark.parametrize("rung", (*RUNGS, *BEYOND))
def test_nothing_that_came_in_is_changed(rung):
    _, ours = pair(rung, 3, 4, 2)
    x, *state = (draw(shape, n, grad=False) for n, shape in enumerate([(5, 2, 3), (2, 2, 4), (2, 2, 4)]))
    kept = [tensor.clone() for tensor in (x, *state, *ours.parameters())]
    first, (h, _) = ours(x, state)
    second, _ = ours(x, state)
    assert torch.equal(first, second)
    h.detach().zero_()  # a copy: the output stays
    assert torch.equal(first, second)
    for tensor, before in zip((x, *state, *ours.parameters()), kept, strict=True):
        assert torch.equal(tensor, before)


@pytest.mark.oracle
@pytest.mark.parametrize("rung", (*RUNGS, *BEYOND))
def test_inputs_may_lie_in_memory_as_they_like(rung):
    theirs, ours = pair(rung, 3, 4)
    x = draw((2, 3, 6), 1, grad=False).permute(2, 0, 1)  # (6, 2, 3)
    state = tuple(draw((2, 1, 4), seed, grad=False).transpose(0, 1) for seed in (2, 3))  # (1, 2, 4)
    torch.testing.assert_close(ours(x, state)[0], theirs(x, state)[0], **CLOSE)


@pytest.mark.parametrize("rung", (*RUNGS, *BEYOND))
def test_training_leaves_no_memory_behind(rung):
    _, ours = pair(rung, 3, 4, 2)
    output, state = ours(draw((5, 2, 3), 1))
    kept = weakref.ref(output)
    del output, state
    gc.disable()  # whatever lives on would be held by a cycle
    try:
        assert kept() is None
    finally:
        gc.enable()


TRITON = kernels.triton is not None and (kernels.INTERPRETED or torch.cuda.is_available())


MARKS = [pytest.mark.gpu, pytest.mark.skipif(not TRITON, reason="needs Triton")]


@pytest.mark.oracle
@pytest.mark.parametrize("path", ["plain", pytest.param("triton", marks=MARKS)])
@pytest.mark.parametrize("rung", ["fused_pointwise", "wavefront", *BEYOND])
def test_weights_and_gradients_may_lie_in_memory_as_they_like(rung, path, monkeypatch):
    """A kernel that takes every array for contiguous would be wrong here, and its plain twin right."""
    for name in ("cell", "cell_backward"):
        monkeypatch.setattr(kernels, name, getattr(kernels, f"{path}_{name}"))
    theirs, ours = pair(rung, 3, 4, 2)
    device = "cuda" if path == "triton" and not kernels.INTERPRETED else "cpu"
    x, like = draw((5, 2, 3), 1).to(device), draw((2, 4, 2), 2, grad=False).to(device)
    apart = {}  # biases whose numbers lie two apart
    for name, p in theirs.named_parameters():
        wide = torch.zeros(*p.shape, 2, dtype=p.dtype)
        wide[..., 0] = p.detach()
        apart[name] = wide.to(device)[..., 0].requires_grad_()
    found = []
    for module in (ours.to(device), theirs.to(device)):
        output, (h, c) = torch.func.functional_call(module, apart, (x,))
        loss = (output**2).sum() + (h.transpose(1, 2) * like).sum() + (c.transpose(1, 2) * like.cos()).sum()
        found.append([output, h, c, *torch.autograd.grad(loss, [x, *apart.values()])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def test_the_output_is_not_a_part_of_what_is_kept():
    for rung in (*RUNGS, *BEYOND):
        for layers in (1, 2):
            output, _ = pair(rung, 3, 4, layers)[1](draw((5, 2, 3), 1))
            output.mul_(2).sum().backward()  # autograd refuses this for a view of its own memory


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types(dtype):
    theirs, ours = pair("fused_pointwise", 8, 16, 2, dtype=torch.float64)
    x = draw((6, 4, 8), 1, grad=False)
    output, (h, c) = ours.to(dtype)(x.to(dtype))
    assert output.dtype == h.dtype == c.dtype == dtype
    error = (output.double() - theirs(x)[0]).abs().max()
    assert error < 16 * torch.finfo(dtype).eps


@pytest.mark.oracle
def test_the_same_parameters_by_the_same_names():
    theirs, ours = pair("baseline", 3, 4, 2, bidirectional=True)
    wanted = [(name, p.shape) for name, p in theirs.named_parameters()]
    assert [(name, p.shape) for name, p in ours.named_parameters()] == wanted
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():  # copies: ours do not follow
        theirs.weight_ih_l0.add_(1)
    assert not torch.equal(theirs.weight_ih_l0, ours.weight_ih_l0)


@pytest.mark.oracle
def test_fresh_weights_are_drawn_as_pytorch_draws_them():
    torch.manual_seed(1)
    ours = LSTM(3, 25, 2)
    torch.manual_seed(1)
    theirs = torch.nn.LSTM(3, 25, 2)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


X, STATE = torch.zeros(5, 2, 3), torch.zeros(2, 2, 4)
WRONG = {  # x, h0, c0 of an LSTM(3, 4, 2)
    r"x has the shape \(5, 3\); wanted \(T, B, 3\)": (X[:, 0], STATE, STATE),
    r"x has the shape \(5, 2, 2\); wanted \(T, B, 3\)": (X[:, :, 1:], STATE, STATE),
    r"x has the shape \(0, 2, 3\); wanted \(T, B, 3\)": (X[:0], STATE, STATE),
    r"h0 has the shape \(1, 2, 4\); wanted \(2, 2, 4\)": (X, STATE[:1], STATE),
    r"c0 has the shape \(2, 1, 4\); wanted \(2, 2, 4\)": (X, STATE, STATE[:, :1]),
    "x.dtype is torch.float64; wanted one of torch.float32": (X.double(), STATE, STATE),
    "c0.dtype is torch.float16; wanted one of torch.float32": (X, STATE, STATE.half()),
    "x is a list; wanted a torch.Tensor": ([[1.0]], STATE, STATE),
    r"state is Tensor; wanted the pair \(h0, c0\)": (X, STATE),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_input_is_named(message):
    x, *state = WRONG[message]
    with pytest.raises((ValueError, TypeError), match=message):
        LSTM(3, 4, 2)(x, tuple(state) if len(state) == 2 else state[0])


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (dict(input_size=0), ValueError, "input_size is 0"),
        (dict(hidden_size=2.0), TypeError, "hidden_size is 2.0"),
        (dict(num_layers=0), ValueError, "num_layers is 0"),
        (dict(combine=0), ValueError, "combine is 0"),
        (dict(rung="eighth"), ValueError, "rung is 'eighth'; wanted one of 'baseline', 'combined_gemms'"),
        (dict(rung=BEYOND[0], bidirectional=True), ValueError, "bidirectional is True; wanted False"),
    ],
)
def test_wrong_sizes_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        LSTM(**dict(input_size=3, hidden_size=4) | arguments)


@pytest.mark.parametrize(
    "options", [dict(batch_first=True), dict(bias=False), dict(dropout=0.5, num_layers=2), dict(proj_size=2)]
)
def test_a_module_that_no_rung_can_be(options):
    with pytest.raises(ValueError, match=f"module has {next(iter(options))}="):
        LSTM.from_torch(torch.nn.LSTM(3, 4, **options))
    with pytest.raises(TypeError, match="module is a GRU; wanted a torch.nn.LSTM"):
        LSTM.from_torch(torch.nn.GRU(3, 4))


@given(blocks=st.integers(1, 20), layers=st.integers(1, 6), directions=st.sampled_from((1, 2)))
def test_the_schedule_runs_each_block_once_and_never_too_early(blocks, layers, directions):
    schedule = slots(blocks, layers, directions)
    assert len(schedule) == (blocks + layers - 1 if directions == 1 else blocks * layers)
    when = {cell: number for number, slot in enumerate(schedule) for cell in slot}
    assert len(when) == sum(map(len, schedule)) == blocks * layers * directions
    for (layer, direction, block), number in when.items():
        if block:
            assert when[layer, direction, block - 1] < number
        if layer and directions == 1:
            assert when[layer - 1, 0, block] < number
        if layer and directions == 2:
            assert max(when[layer - 1, d, blocks - 1] for d in range(2)) < number


@pytest.mark.oracle
def test_the_schedule_of_the_published_run():
    assert len(slots(100, 4)) == 103


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.oracle
@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("rung", (*RUNGS, *BEYOND))
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_rung_on_a_gpu(rung, bidirectional):
    theirs, ours = pair(rung, 48, 65, 3, bidirectional and rung not in BEYOND)
    theirs, ours = theirs.cuda(), ours.cuda()
    x = draw((33, 17, 48), 1).detach().cuda().requires_grad_()
    for _ in range(5):  # streams that race do so now and then
        output, (h, c) = ours(x)
        wanted, (h_n, c_n) = theirs(x)
        for a, b in zip((output, h, c), (wanted, h_n, c_n), strict=True):
            torch.testing.assert_close(a, b, **CLOSE)
    back = torch.autograd.grad((output**2).sum(), [x, *ours.parameters()])
    wanted_back = torch.autograd.grad((wanted**2).sum(), [x, *theirs.parameters()])
    for a, b in zip(back, wanted_back, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("rung", (*RUNGS, *BEYOND))
def test_a_rung_as_a_cuda_graph(rung):
    from ed_lib.devices import record

    _, ours = pair(rung, 32, 64, 3, dtype=torch.float32)
    ours = ours.cuda()
    x, kept = torch.randn(20, 8, 32, device="cuda"), []
    with torch.no_grad():
        replay = record(lambda: kept.append(ours(x)[0]), x)
        for _ in range(3):
            x.normal_()
            replay()
            torch.testing.assert_close(kept[-1], ours(x)[0])
