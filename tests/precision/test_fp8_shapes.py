"""The layouts of FP8 products against what torch._scaled_mm demands on a GPU. None is needed: PyTorch's fake
tensors have a device, a shape and strides, and its operators check them before they would compute.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ed_lib import models
from ed_lib.precision import fp8
from ed_lib.precision.fp8 import E4M3, E5M2

ROWS = 1, 15, 16, 17, 64, 1000, 4096, 256 * 128  # samples, or sentences times tokens
SCALE = dict(out_dtype=torch.bfloat16, use_fast_accum=False)


@pytest.fixture
def calls(monkeypatch):
    """Fake tensors on a GPU with FP8; the arguments of each call of torch._scaled_mm, with its result."""
    found, scaled_mm = [], torch._scaled_mm

    def record(a, b, **kwargs):
        found.append((a, b, kwargs, scaled_mm(a, b, **kwargs)))
        return found[-1][-1]

    monkeypatch.setattr(fp8, "in_hardware", lambda device: torch.device(device).type == "cuda")
    monkeypatch.setattr(torch, "_scaled_mm", record)
    with FakeTensorMode():
        yield found


def on_gpu(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="cuda")


def scaled(M, K, N):
    """Operands a (M, K) and b (N, K) of E4M3, and their scales."""
    a, b = on_gpu(M, K).to(E4M3), on_gpu(N, K).to(E4M3)
    return a, b, dict(scale_a=on_gpu(dtype=torch.float32), scale_b=on_gpu(dtype=torch.float32))


def sizes():
    """(K, N) of the layers that benchmarks.precision trains in FP8."""
    with torch.device("meta"):
        nets = nn.ModuleList([models.mlp(), models.Encoder(layers=1, vocabulary=2, positions=2)])
    fp8.use_float8(nets)
    return sorted({m.weight.shape[::-1] for m in nets.modules() if isinstance(m, fp8.Float8Linear)})


@pytest.mark.oracle
@pytest.mark.parametrize("K, N", sizes())
def test_a_gpu_accepts_the_products_of_a_layer_and_of_its_gradients(calls, K, N):
    weight = on_gpu(N, K, dtype=torch.float32)
    for M in ROWS:
        rows = -(-M // 16) * 16  # as the layer pads them
        context = SimpleNamespace(needs_input_grad=(True, True))
        context.save_for_backward = lambda *kept, c=context: setattr(c, "saved_tensors", kept)
        y = fp8.Product8.forward(context, on_gpu(rows, K), weight, torch.bfloat16)
        grad_x, grad_w, _ = fp8.Product8.backward(context, torch.empty_like(y))
        assert [t.shape for t in (y, grad_x, grad_w)] == [(rows, N), (rows, K), (N, K)]
        assert [t.dtype for t in (y, grad_x, grad_w)] == [torch.bfloat16, torch.bfloat16, torch.float32]
        products = [(a.dtype, a.shape, b.dtype, b.shape, more["use_fast_accum"]) for a, b, more, _ in calls]
        assert products == [
            (E4M3, (rows, K), E4M3, (K, N), True),
            (E5M2, (rows, N), E4M3, (N, K), False),  # gradients are not summed in fewer bits
            (E5M2, (N, rows), E4M3, (rows, K), False),
        ]
        for a, b, more, result in calls:
            assert a.is_contiguous() and b.t().is_contiguous() and result.is_contiguous()
            assert more["scale_a"].shape == more["scale_b"].shape == ()
            assert more["scale_a"].dtype == more["scale_b"].dtype == torch.float32
        calls.clear()


@pytest.mark.oracle
@pytest.mark.parametrize("shape", [(784,), (1, 784), (3, 784), (2, 5, 784), (0, 784)])
def test_rows_are_filled_up_to_sixteen_and_taken_away_again(calls, shape):
    with torch.no_grad():
        y = fp8.Float8Linear(784, 256, device="cuda")(on_gpu(*shape))
    assert y.shape == (*shape[:-1], 256) and y.dtype == torch.bfloat16
    ((a, _, _, _),) = calls
    assert a.shape == (16, 784)


WRONG = {
    "a second operand by rows": lambda a, b: (a, b.t().contiguous()),
    "a first operand by columns": lambda a, b: (a.t().contiguous().t(), b.t()),
    "K is no multiple of 16": lambda a, b: (a[:, :40].contiguous(), b[:, :40].contiguous().t()),
    "N is no multiple of 16": lambda a, b: (a, b[:56].contiguous().t()),
    "numbers of 16 bits": lambda a, b: (a.bfloat16(), b.bfloat16().t()),
}


@pytest.mark.oracle
@pytest.mark.parametrize("what", WRONG)
def test_a_gpu_refuses(calls, what):
    a, b, scales = scaled(32, 48, 64)
    assert torch._scaled_mm(a, b.t(), **scales, **SCALE).shape == (32, 64)
    with pytest.raises(RuntimeError):
        torch._scaled_mm(*WRONG[what](a, b), **scales, **SCALE)


@pytest.mark.oracle
def test_a_product_does_not_hide_sizes_that_a_gpu_refuses(calls):
    a, b, scales = scaled(32, 40, 64)
    with pytest.raises(RuntimeError, match="16"):
        fp8.product((a, scales["scale_a"]), (b, scales["scale_b"]))
