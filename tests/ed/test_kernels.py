"""The Triton kernels against formulas in float64, in Triton's interpreter where there is no GPU."""

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

pytest.importorskip("triton")
from ed_lib.ed import kernels, rules  # noqa: E402
from tests.ed.test_rules import loop_layer, loop_update, sigma  # noqa: E402

DEVICE = "cpu" if kernels.INTERPRETED else "cuda"
SIGN = np.array([1.0, -1.0])
TOLERANCE = {"float32": dict(rtol=2e-5, atol=2e-6), "float64": dict(rtol=1e-11, atol=1e-13)}

# width, batch, K, D, n, dtype, rule: every size with others, not each with each
CASES = [
    (1, 1, 1, 1, 1, "float64", "kaneko"),
    (1, 64, 3, 5, 2, "float32", "signed"),
    (17, 63, 3, 1, 2, "float64", "signed"),
    (17, 1, 1, 5, 1, "float32", "kaneko"),
    (32, 64, 1, 5, 1, "float32", "signed"),
    (32, 64, 3, 1, 2, "float32", "kaneko"),
    (32, 130, 1, 1, 1, "float64", "kaneko"),
    (65, 63, 1, 1, 2, "float32", "kaneko"),
]
CUTS = [(case, rows) for case in CASES for rows in (1, 8, 16, 64) if rows > 1 or case[1] < 64]
SMALL = (3, 5, 2, 2, 2, "float64", "kaneko")


def fold_weight(w):
    """(..., p, q, i, o) → (..., q·i, p·o), times s_p."""
    w = np.moveaxis(w * SIGN[:, None, None, None], -4, -2)  # (..., q, i, p, o)
    return w.reshape(*w.shape[:-4], w.shape[-4] * w.shape[-3], 2 * w.shape[-1])


def fold_bias(b):
    """(D, K, p, n, o) → (D, K, n, p·o), times s_p."""
    b = np.moveaxis(b * SIGN[:, None, None], 2, 3)  # (D, K, n, p, o)
    return b.reshape(*b.shape[:3], 2 * b.shape[-1])


def fold_states(y):
    """(..., p, b, o) → (..., b, p·o)."""
    y = np.moveaxis(y, -3, -2)
    return y.reshape(*y.shape[:-2], 2 * y.shape[-1])


def tensor(array, dtype):
    array = np.ascontiguousarray(array).reshape(np.shape(array))  # the first makes () to (1,)
    return torch.as_tensor(array, dtype=getattr(torch, dtype)).to(DEVICE)


class Case:
    """Random arrays in the plain layout, float64 but rounded to ``dtype``; and folded ones, as tensors."""

    def __init__(self, width, batch, networks, depth, n, dtype, rule, scale=1.0):
        rng = np.random.default_rng(width + 7 * batch + 31 * depth)
        self.dtype, self.rule, self.depth, self.batch = dtype, rule, depth, batch
        rounded = lambda a: np.asarray(a, dtype).astype(float)  # noqa: E731
        weight = rng.normal(size=(depth, networks, 2, 2, width, width))
        self.weight = rounded(scale * weight / np.sqrt(2 * width) / 2)
        self.bias = rounded(0.1 * rng.normal(size=(depth, networks, 2, n, width)))
        self.states = rounded(rng.random((depth + 1, networks, 2, batch, width)))
        self.error = rounded(rng.uniform(-1, 1, (batch, networks)))
        self.rate = float(np.asarray(0.8 / batch, dtype))
        self.gains = rules.gains(self.error, rule)[..., 0] * self.rate  # (K, 2, B)
        self.bias_gains = rules.BIAS_CELL * self.gains if n == 2 else self.error.T[:, None] * self.rate

    def folded(self):
        """weight, bias, states, error, rate."""
        plain = fold_weight(self.weight), fold_bias(self.bias), fold_states(self.states), self.error
        return [tensor(a, self.dtype) for a in (*plain, np.float64(self.rate))]

    def forward(self):
        """The states that follow from states[0], with the sum over n as the bias."""
        states = [self.states[0]]
        for weight, bias in zip(self.weight, self.bias.sum(axis=3, keepdims=True), strict=True):
            total = np.einsum("kqbi,kpqio->kpbo", states[-1], weight) + bias
            states.append(1 / (1 + np.exp(-2 / 0.4 * SIGN[:, None, None] * total)))
        return np.stack(states)

    def update(self):
        """Weight and bias after one step."""
        x, y = self.states[:-1], self.states[1:]
        slope = y * (1 - y)
        dw = np.einsum("dkqbi,kqb,dkpbo->dkpqio", x, self.gains, slope, optimize=True)
        return self.weight + dw, self.bias + np.einsum("knb,dkpbo->dkpno", self.bias_gains, slope)


@pytest.mark.oracle
@pytest.mark.parametrize("rule", rules.RULES)
def test_the_formulas_here_equal_plain_loops(rule):
    case = Case(*SMALL[:-1], rule)
    weight, bias = case.update()
    states = case.forward()
    for d in range(case.depth):
        b = case.bias[d].sum(axis=2, keepdims=True)
        np.testing.assert_allclose(states[d + 1], loop_layer(states[d], case.weight[d], b, 0.4), rtol=1e-12)
        x, y = case.states[d], case.states[d + 1]
        wanted = case.weight[d] + loop_update(x, y, case.error, 0.8, rule)
        np.testing.assert_allclose(weight[d], wanted, rtol=1e-12, atol=1e-14)
        sent = np.full((*x.shape[:3], 1), 0.8)  # a bias cell is a sender that is constant
        wanted = case.bias[d] + loop_update(sent, y, case.error, 0.8, rule)[:, :, :, 0]
        np.testing.assert_allclose(bias[d], wanted, rtol=1e-12, atol=1e-14)


def cut(states, rows):
    return kernels.forward_cut(states)._replace(rows=rows)


def update(weight, bias, states, error, rate, rule, **options):
    kernels.update(weight, bias, states[:-1], states[1:], error, rate, rule, **options)


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("case, rows", CUTS, ids=str)
def test_forward_equals_the_formula(case, rows):
    if DEVICE == "cuda" and (reason := kernels.obstacle(case[0], case[5])):
        pytest.skip(reason)
    case = Case(*case)
    weight, bias, states, *_ = case.folded()
    first = states[0].clone()
    states[1:] = float("nan")
    kernels.forward(states, weight, bias.sum(dim=2, keepdim=True), 0.4, cut=cut(states, rows))
    np.testing.assert_allclose(states.cpu(), fold_states(case.forward()), **TOLERANCE[case.dtype])
    assert torch.equal(states[0], first)


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_update_equals_the_formula_and_leaves_the_states(case):
    case = Case(*case)
    weight, bias, *read = case.folded()
    before = [a.clone() for a in read]
    update(weight, bias, *read, case.rule)
    for ours, wanted in zip((weight, bias), case.update(), strict=True):
        fold = fold_weight if wanted.ndim == 6 else fold_bias
        np.testing.assert_allclose(ours.cpu(), fold(wanted), **TOLERANCE[case.dtype])
    assert all(torch.equal(a, b) for a, b in zip(read, before, strict=True))


SIZES = [(1, 1, 1, 1), (5, 17, 3, 63), (40, 1, 1, 130), (16, 32, 2, 64)]  # senders' and receivers' W, K, B


@pytest.mark.gpu
@pytest.mark.parametrize("n, rule", [(1, "signed"), (2, "kaneko"), (1, "kaneko")])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_update_of_a_layer_whose_senders_are_not_its_receivers(sizes, shared, n, rule):
    """The input layer, whose two types of sender send the same x; and others like the output layer."""
    senders, receivers, networks, batch = sizes
    rng = np.random.default_rng(batch)
    x, y = rng.normal(size=(networks, 2, batch, senders)), rng.random((networks, 2, batch, receivers))
    weight = rng.normal(size=(networks, 2, 2, senders, receivers))
    bias = rng.normal(size=(networks, 2, n, receivers))
    error = rng.uniform(-1, 1, (batch, networks))
    if shared:
        x[:] = x[:1, :1]
    ones = np.full((networks, 2, batch, 1), rules.BIAS_CELL)  # bias cells are senders
    changed = weight + rules.weight_update(x, y, error, 0.8, rule)
    of_cells = rules.weight_update(ones, y, error, 0.8, rule)[..., 0, :]
    of_bias = of_cells if n == 2 else rules.bias_update(y, error, 0.8)
    sent = tensor(x[0, 0] if shared else fold_states(x)[None], "float64")
    ours = tensor(fold_weight(weight)[None], "float64"), tensor(fold_bias(bias[None]), "float64")
    kernels.update(*ours, sent, tensor(fold_states(y)[None], "float64"), tensor(error, "float64"),
                   tensor(np.float64(0.8 / batch), "float64"), rule)  # fmt: skip
    np.testing.assert_allclose(ours[0][0].cpu(), fold_weight(changed), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(ours[1].cpu(), fold_bias((bias + of_bias)[None]), rtol=1e-11, atol=1e-13)


@pytest.mark.gpu
def test_every_cut_of_the_update_gives_the_same():
    case = Case(17, 63, 2, 2, 2, "float64", "kaneko")
    for rows, tile, stages in ((16, 16, 2), (64, 32, 1), (32, 64, 3)):
        weight, bias, *read = case.folded()
        update(weight, bias, *read, "kaneko", cut=kernels.Update(rows, tile, "ieee", 4, stages))
        np.testing.assert_allclose(weight.cpu(), fold_weight(case.update()[0]), rtol=1e-11, atol=1e-13)


@pytest.mark.gpu
@pytest.mark.parametrize("number, walks", [(0.5, False), (1.0, False), (1.5, True), (float("nan"), True)])
def test_a_walk_is_left_out_by_a_number_on_the_device(number, walks):
    weight, bias, states, *_ = Case(3, 5, 2, 2, 1, "float64", "kaneko").folded()
    before = states.clone()
    kernels.forward(states, weight, bias, 0.4, unless=(torch.tensor(number, device=DEVICE), 1.0))
    assert torch.equal(states, before) != walks


def guarded(array):
    """A copy of a tensor in the middle of a larger buffer of sevens → (copy, buffer)."""
    buffer = torch.full((array.numel() + 512,), 7.0, dtype=array.dtype, device=array.device)
    inside = buffer[256:-256].view(array.shape)
    inside.copy_(array)
    return inside, buffer


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [2, 16])
@pytest.mark.parametrize("width, batch", [(17, 63), (16, 48)])  # with masks and without
def test_nothing_is_written_outside_the_arrays(rows, width, batch):
    arrays = Case(width, batch, 2, 2, 2, "float32", "signed").folded()
    inside, buffers = zip(*map(guarded, arrays), strict=True)
    weight, bias, states, *others = inside
    kernels.forward(states, weight, bias[:, :, :1].clone(), 0.4, cut=cut(states, rows))
    update(weight, bias, states, *others, "signed")
    for buffer in buffers:
        assert (buffer[:256] == 7).all() and (buffer[-256:] == 7).all()


@pytest.mark.gpu
def test_a_stack_without_layers_changes_nothing():
    weight, bias, states, *others = Case(3, 5, 2, 0, 1, "float32", "kaneko").folded()
    before = states.clone()
    kernels.forward(states, weight, bias, 0.4)
    update(weight, bias, states, *others, "kaneko")
    assert torch.equal(states, before)


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("rows", [2, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_sums_give_0_and_1_and_no_nan(rows, dtype):
    case = Case(3, 5, 1, 1, 1, dtype, "kaneko", scale=1e6)
    weight, bias, states, *_ = case.folded()
    with np.errstate(over="ignore"):
        kernels.forward(states, weight, bias, 0.4, cut=cut(states, rows))
        wanted = fold_states(case.forward())
    np.testing.assert_array_equal(states[1].cpu(), wanted[1])
    assert set(wanted[1].ravel()) == {0.0, 1.0}


@pytest.mark.oracle
@pytest.mark.gpu
def test_u0_sets_the_width_of_the_sigmoid():
    states = tensor(np.ones((2, 1, 1, 2)), "float64")
    weight, bias = tensor(np.eye(2)[None, None], "float64"), tensor(np.zeros((1, 1, 1, 2)), "float64")
    kernels.forward(states, weight, bias, 3)
    np.testing.assert_allclose(states[1].cpu(), sigma(1, 3), rtol=1e-14)


def test_the_width_that_fits_a_gpu():
    assert kernels.obstacle(64, torch.float32) is None and kernels.obstacle(32, np.dtype("float64")) is None
    needed = "{} KiB of shared memory for the width {} in {}; at most 64"
    assert needed.format(256, 65, "float32") in kernels.obstacle(65, torch.float32)
    assert needed.format(128, 33, "float64") in kernels.obstacle(33, "float64")
