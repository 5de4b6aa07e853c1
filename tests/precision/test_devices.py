"""All of Part III on a GPU, without one: PyTorch's fake tensors know their device, and have no
numbers. What stayed on the CPU would raise there.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ed_lib import models
from ed_lib.precision import decoding, formats, minilm
from ed_lib.precision.autocasting import autocast
from ed_lib.precision.compression import keep_filters
from ed_lib.precision.low_bit_training import RECIPES, Bfloat16Weights, low_bits
from ed_lib.precision.quantization import Quantized
from ed_lib.precision.scaler import GradScaler

SIZES = {"layers": 2, "hidden": 12, "heads": 3, "vocabulary": 20, "positions": 9}


def ones(*shape, **options):
    return torch.ones(*shape, device="cuda", **options)


def parameter():
    p = nn.Parameter(ones(64, 64))
    p.grad = torch.ones_like(p)
    return p


def scaler():
    p, ours = parameter(), GradScaler("cpu")
    loss = ours.scale(p.sum())  # no backward pass: that asks for a GPU's streams
    ours.unscale_(torch.optim.SGD([p], 1.0))
    return [loss, p.grad, *(each.finite for each in ours._progress.values())]


def bfloat16(how):
    optimizer = torch.optim.SGD([p := parameter()], 1.0)
    kept = Bfloat16Weights(optimizer, how)
    optimizer.step()
    return [p, *kept.rest, *kept.before]


def recipe(name):
    x, w = ones(2, 128, 128)
    with low_bits(RECIPES[name], {"w": w}) as mode:
        return [x @ w, *mode.round("w", "g", x)]


def in_few_bits():
    with autocast(torch.float16):
        return [F.linear(ones(8, 16), ones(4, 16)), F.softmax(ones(8, 16), 1)]


def quantized():
    conv, linear = nn.Conv2d(1, 2, 3, device="cuda"), nn.Linear(8, 3, device="cuda")
    conv, linear = Quantized(conv, ones(2, 1, 1, 1), 4), Quantized(linear, ones(3, 1), 4)
    assert not [name for name, value in vars(conv).items() if isinstance(value, torch.Tensor)]
    assert {"scale", "bits"} < conv.state_dict().keys(), "buffers, so that .to moves them"
    return [nn.Sequential(conv, nn.Flatten(), linear)(ones(2, 1, 4, 4))]


def encoder():
    tokens = [torch.ones(3, dtype=torch.long)] * 2
    with torch.device("cuda"):
        net = models.Encoder(**SIZES, eps=minilm.EPS)
    made = minilm.Examples(tokens, tokens, torch.zeros(2, dtype=torch.long)).batch([0, 1], "cuda")
    return [minilm.embeddings(net, tokens), net(*made[:3]), *made]


def decoded():
    with torch.device("cuda"):
        net, caches = models.GPT(11, 9, 8, 2, 1), [[]]
    return [
        *(decoding.decode_step(net, ones(3, dtype=torch.long), caches) for _ in range(2)),
        *caches[0],
    ]


def gpt(recompute):
    with torch.device("cuda"):
        net = models.GPT(11, 9, 8, 2, 1, recompute)
    return [net(ones(2, 9, dtype=torch.long))]


def fewer_filters():
    with torch.device("cuda"):
        net = models.lenet()
    small = keep_filters(net, {"0": range(5), "7": [1, 2]})
    return [small(ones(2, 1, 28, 28)), *small.parameters()]


ALL = {
    "GradScaler": scaler,
    **{
        f"Bfloat16Weights, {how}": partial(bfloat16, how)
        for how in ("nearest", "stochastic", "kahan")
    },
    **{f"low_bits, {name}": partial(recipe, name) for name in RECIPES if "delayed" not in name},
    "autocast": in_few_bits,
    "nearest": lambda: [formats.nearest(ones(3), "e4m3", torch.Generator())],
    "Quantized": quantized,
    "MiniLM": encoder,
    "decoding": decoded,
    **{f"GPT, {how}": partial(gpt, how) for how in models.RECOMPUTE},
    "keep_filters": fewer_filters,
}


@pytest.mark.parametrize("what", ALL)
def test_on_a_gpu_all_of_it_is_there(what):
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert {each.device.type for each in ALL[what]()} == {"cuda"}
