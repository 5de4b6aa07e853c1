"""The emulated autocast: classes against PyTorch's header, types against CUDA's on fake tensors,
numbers and gradients against casts by hand.
"""

import contextlib
import functools
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ed_lib import models
from ed_lib.precision.autocasting import CLASSES, HALVES, autocast

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
MACROS = {
    "low": ["AT_FORALL_LOWER_PRECISION_FP"],
    "float32": [
        "AT_FORALL_FP32",
        "AT_FORALL_FP32_SET_OPT_DTYPE",
        "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE",
    ],
    "widest": ["AT_FORALL_PROMOTE"],
}
NEWER = {"rms_norm"}  # PyTorch 2.11 does not list it yet
ALIASES = {  # what Python adds: operators, and functions that are made of listed ones
    "low": {"__matmul__", "__rmatmul__", "linalg_matmul"},
    "float32": {
        "cross_entropy",
        "normalize",
        "softmin",
        "vector_norm",
        "matrix_norm",
        "linalg_norm",
    }
    | {
        "__pow__",
        "__rpow__",
        "__rdiv__",
        "__rtruediv__",
        "arccos",
        "arcsin",
        "square",
        "sum_to_size",
    }
    | {
        f"special_{name}"
        for name in ("erfinv", "expm1", "log1p", "softmax", "log_softmax", "logsumexp")
    }
    | {"trapz", "trapezoid", "cumulative_trapezoid", "gumbel_softmax", "gaussian_nll_loss"}
    | {"multilabel_soft_margin_loss", "triplet_margin_with_distance_loss", "pairwise_distance"}
    | {"local_response_norm", "lp_pool1d", "lp_pool2d", "lp_pool3d"}
    | {"interpolate", "upsample", "upsample_nearest", "upsample_bilinear"},
    "widest": {"grid_sample", "arctan2", "inner"},
}


def random(*shape, seed=0, **like):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **like)


def listed(macro):
    """The operations that PyTorch's header lists in a macro, without those that are internal."""
    text = HEADER.read_text()
    body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*\n)", text).group(1)
    names = re.findall(r"_\((?:ADD_NS\()?(\w+)", body)
    return {name for name in names if not name.startswith("_")}


@pytest.mark.oracle
@pytest.mark.skipif(not HEADER.exists(), reason="this PyTorch comes without its headers")
@pytest.mark.parametrize("kind", MACROS)
def test_the_classes_are_those_of_pytorchs_lists_for_cuda(kind):
    theirs = set().union(*map(listed, MACROS[kind]))
    ours = {name for name, k in CLASSES.items() if k == kind}
    assert len(theirs) > 10
    assert ours - ALIASES[kind] - (NEWER - theirs) == theirs


X = random(6, 6).abs() + 0.1
TARGET = torch.arange(6)
OF_ONE = [
    torch.exp,
    torch.sum,
    torch.norm,
    torch.relu,
    torch.mean,
    torch.arccos,
    torch.Tensor.arcsin,
]
OF_ONE += [
    torch.square,
    torch.trapezoid,
    torch.trapz,
    torch.cumulative_trapezoid,
    torch.linalg.norm,
]
OF_ONE += [torch.special.expm1, torch.special.log1p, torch.special.erfinv]
CALLS = {  # x in the type that is tried, c in float32
    "linear": lambda x, c: F.linear(x, c, c[0]),
    "matmul": lambda x, c: torch.matmul(x, c),
    "@": lambda x, c: x @ c,
    "einsum": lambda x, c: torch.einsum("ij,jk->ik", x, c),
    "conv1d": lambda x, c: F.conv1d(x[None], c[:, :, None]),
    "attention": lambda x, c: F.scaled_dot_product_attention(x[None], c[None], c[None]),
    "softmax": lambda x, c: F.softmax(x, dim=1),
    "x.softmax": lambda x, c: x.softmax(1),
    "layer_norm": lambda x, c: F.layer_norm(x, (6,), c[0], c[1]),
    "cross_entropy": lambda x, c: F.cross_entropy(x, TARGET.to(x.device)),
    "mse_loss": lambda x, c: F.mse_loss(x, c),
    "with_logits": lambda x, c: F.binary_cross_entropy_with_logits(x, (c > 0.5).to(c.dtype)),
    "x ** 2": lambda x, c: x**2,
    "2 ** x": lambda x, c: 2**x,
    "1 / x": lambda x, c: 1 / x,
    "cumsum": lambda x, c: x.cumsum(0),
    "addcmul": lambda x, c: torch.addcmul(x, x, c),
    "addcmul of one type": lambda x, c: torch.addcmul(x, x, x),
    "gelu": lambda x, c: F.gelu(x),
    "add": lambda x, c: x + c,
    "add of one type": lambda x, c: x + x,
    "cat": lambda x, c: torch.cat([x, c]),
    "max_pool1d": lambda x, c: F.max_pool1d(x, 2),
    "linalg.matmul": lambda x, c: torch.linalg.matmul(x, c),
    "inner": lambda x, c: torch.inner(x, c),
    "inner of one type": lambda x, c: torch.inner(x, x),
    "arctan2": lambda x, c: torch.arctan2(x, c),
    "sum_to_size": lambda x, c: x.sum_to_size(6),
    "special.softmax": lambda x, c: torch.special.softmax(x, 1),
    "special.log_softmax": lambda x, c: torch.special.log_softmax(x, 1),
    "special.logsumexp": lambda x, c: torch.special.logsumexp(x, 1),
    "pairwise_distance": lambda x, c: F.pairwise_distance(x, x + 1),
    "with_distance": lambda x, c: F.triplet_margin_with_distance_loss(x, x + 1, x - 1),
    "soft_margin": lambda x, c: F.multilabel_soft_margin_loss(x, (c > 0.5).to(c.dtype)),
    "gaussian_nll": lambda x, c: F.gaussian_nll_loss(x, x + 1, 2.0),
    "gumbel_softmax": lambda x, c: 0 * F.gumbel_softmax(x),
    "local_response_norm": lambda x, c: F.local_response_norm(x[None], 2),
    "lp_pool1d": lambda x, c: F.lp_pool1d(x, 2, 2),
    "lp_pool2d": lambda x, c: F.lp_pool2d(x[None], 2, 2),
    "area": lambda x, c: F.interpolate(x[None], size=3, mode="area"),
    "interpolate": lambda x, c: F.interpolate(x[None], scale_factor=2.0),
    **{f.__name__: lambda x, c, f=f: f(x / 8) for f in OF_ONE},
    "bilinear": lambda x, c: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
}
SAME_OUT = {"addcmul of one type", "relu", "gelu", "add of one type", "inner of one type"}
SAME_OUT |= {"max_pool1d", "mean", "area"}


@contextlib.contextmanager
def autocast_of_cuda(dtype):
    """torch.autocast("cuda", dtype) for fake tensors, which have a device but no numbers: it needs
    no GPU.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", dtype)
        try:
            yield
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.clear_autocast_cache()


ON_GPU = pytest.param(
    functools.partial(torch.autocast, "cuda"), marks=[pytest.mark.gpu, GPU], id="on a GPU"
)


@pytest.mark.oracle
@pytest.mark.parametrize("context", [pytest.param(autocast_of_cuda, id="of fakes"), ON_GPU])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CALLS)
def test_types_are_those_of_torchs_autocast_for_cuda_and_numbers_near_those_of_float64(
    name, dtype, context
):
    call, found = CALLS[name], {}
    for given in (torch.float32, torch.float16, torch.bfloat16):
        with autocast(dtype):
            ours = call(X.to(given), X)
        found[given] = ours.dtype
        assert torch.allclose(ours.double(), call(X.double(), X.double()), rtol=0.05, atol=0.05)
        if given in (torch.float32, dtype):  # CUDA's refuses the other type of 16 bits in part
            with context(dtype=dtype):
                theirs = call(
                    *(torch.ones(6, 6, dtype=t, device="cuda") for t in (given, torch.float32))
                )
            assert ours.dtype == theirs.dtype
    assert set(found.values()) == ({*found} if name in SAME_OUT else {found[torch.float32]})


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_is_rounded_before_and_after_and_so_are_its_gradients(dtype):
    x, w, b = (
        random(5, 7).requires_grad_(),
        random(3, 7, seed=1).requires_grad_(),
        random(3, seed=2),
    )
    b.requires_grad_()
    g = random(5, 3, seed=3)
    with autocast(dtype):
        y = F.linear(x, w, b)
    (y.float() * g).sum().backward()

    def rounded(t):
        return t.detach().to(dtype).float()

    wanted = rounded(rounded(x) @ rounded(w).T + rounded(b))
    assert y.dtype == dtype and torch.equal(y.float(), wanted)
    assert x.grad.dtype == w.grad.dtype == torch.float32
    assert torch.equal(x.grad, rounded(rounded(g) @ rounded(w)))
    assert torch.equal(w.grad, rounded(rounded(g).T @ rounded(x)))
    assert torch.equal(b.grad, rounded(rounded(g).sum(0)))


@pytest.mark.oracle
def test_gradients_below_the_smallest_number_vanish_and_a_larger_loss_brings_them_back():
    w = torch.ones(1, 1, requires_grad=True)
    for scale, wanted in ((1.0, 0.0), (2.0**10, 2.0**-16)):
        w.grad = None
        with autocast(torch.float16):
            y = F.linear(torch.ones(1, 1), w)
        (y.float() * 2.0**-26 * scale).sum().backward()
        assert w.grad.item() == wanted


@pytest.mark.oracle
def test_lenet_is_near_torchs_own_autocast_on_the_cpu():
    x, y = random(16, 1, 28, 28), torch.arange(16) % 10
    found = []
    for context in (autocast(torch.bfloat16), torch.autocast("cpu", torch.bfloat16)):
        net = models.lenet()
        with context:
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in net.parameters())])
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        assert (ours - theirs).norm() <= 0.03 * theirs.norm()


def test_what_is_not_eligible_is_left_alone():
    with autocast():
        assert (X.double() @ X.double()).dtype == torch.float64
        assert (TARGET @ TARGET).dtype == torch.int64
        assert torch.sum(X.half(), dtype=torch.float16).dtype == torch.float16
        out = torch.empty(6, 6)
        assert torch.mm(X, X, out=out) is out
        assert X.clone().addmm_(X, X).dtype == torch.float32
        assert torch.linalg.matrix_power(X.double(), 3).dtype == torch.float64
        assert {each.dtype for each in nn.LSTMCell(6, 4)(X)} == {
            torch.float16
        }  # a cell is a product
    assert torch.equal(out, X @ X)
    assert (X @ X).dtype == torch.float32
