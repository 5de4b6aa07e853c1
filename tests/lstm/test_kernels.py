"""The step of an LSTM against torch.nn.LSTMCell and autograd: the plain twin, and the Triton kernel in its
interpreter where there is no GPU; and that the kernels compile for GPUs that need not be here.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

pytest.importorskip("triton")
from ed_lib.lstm import counters, kernels  # noqa: E402

DEVICE = "cpu" if kernels.INTERPRETED else "cuda"
FORWARD = {"plain": kernels.plain_cell, "triton": kernels.triton_cell, "operator": kernels.cell}
BACKWARD = {"plain": kernels.plain_cell_backward, "triton": kernels.triton_cell_backward}
BACKWARD |= {"operator": kernels.cell_backward}
SIZES = [(1, 1), (3, 5), (2, 128), (7, 65)]  # (B, H): less than a block of 256, more, and not a multiple
ERROR = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def step(batch, size, dtype):
    """A step by torch.nn.LSTMCell in float64, and what ``cell`` takes for the same step in ``dtype``."""
    torch.manual_seed(batch * size)
    like = dict(dtype=torch.float64, device=DEVICE)
    x, h, c = (torch.randn(batch, size, **like) for _ in range(3))
    weights = torch.nn.LSTMCell(size, size, **like)
    a = (x @ weights.weight_ih.t()).detach(), (h @ weights.weight_hh.t()).detach()  # (B, 4H) each
    biases = weights.bias_ih.detach(), weights.bias_hh.detach()
    h_after, c_after = weights(x, (h, c))
    given = [tensor.to(dtype).clone() for tensor in (*a, *biases, c)]
    wide = torch.full((batch, 3 * size), 7.0, dtype=dtype, device=DEVICE)  # output: its rows lie apart
    results = torch.empty(2, batch, size, dtype=dtype, device=DEVICE)
    return (h_after.detach(), c_after.detach()), given, (*results, wide)


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("how", FORWARD)
@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("batch, size", SIZES)
def test_a_step_forward(how, dtype, batch, size):
    (h, c), (gates, recurrent, b_ih, b_hh, before), (c_after, h_after, wide) = step(batch, size, dtype)
    pre = (gates.double() + recurrent.double() + b_ih.double() + b_hh.double()).chunk(4, 1)
    FORWARD[how](gates, recurrent, b_ih, b_hh, before, c_after, h_after, wide[:, size : 2 * size])
    close = dict(rtol=0, atol=4 * ERROR[dtype])
    torch.testing.assert_close(h_after.double(), h, **close)
    torch.testing.assert_close(c_after.double(), c, **close)
    i, f, g, o = (
        act(a) for act, a in zip((torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid), pre, strict=True)
    )
    torch.testing.assert_close(gates.double(), torch.cat([i, f, g, o], 1), **close)
    assert torch.equal(wide[:, size : 2 * size], h_after)
    assert (wide[:, :size] == 7).all() and (wide[:, 2 * size :] == 7).all()


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("how", BACKWARD)
@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("batch, size", SIZES)
def test_a_step_backward(how, dtype, batch, size):
    torch.manual_seed(batch + size)
    a = torch.randn(batch, 4 * size, dtype=torch.float64, device=DEVICE, requires_grad=True)
    before = torch.randn(batch, size, dtype=torch.float64, device=DEVICE, requires_grad=True)
    i, f, g, o = (
        act(x)
        for act, x in zip(
            (torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid), a.chunk(4, 1), strict=True
        )
    )
    after = f * before + i * g
    dh, dc = torch.randn(2, batch, size, dtype=torch.float64, device=DEVICE)
    wanted = torch.autograd.grad([o * after.tanh(), after], [a, before], [dh, dc])
    given = [tensor.detach().to(dtype) for tensor in (torch.cat([i, f, g, o], 1), before, after, dh, dc)]
    kept, dgates = (
        [tensor.clone() for tensor in given],
        torch.empty(batch, 4 * size, dtype=dtype, device=DEVICE),
    )
    BACKWARD[how](*given, dgates)
    close = dict(rtol=ERROR[dtype], atol=6 * ERROR[dtype])
    torch.testing.assert_close(dgates.double(), wanted[0], **close)
    torch.testing.assert_close(given[4].double(), wanted[1], **close)  # dc, in place
    for tensor, copy in zip(given[:4], kept[:4], strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.gpu
@pytest.mark.parametrize("how", FORWARD)
def test_several_layers_at_once_are_each_alone(how):
    torch.manual_seed(0)
    like = dict(dtype=torch.float64, device=DEVICE)
    layers, batch, size = 3, 5, 67
    gates, recurrent = torch.randn(2, layers * batch, 4 * size, **like)
    b_ih, b_hh = torch.randn(2, layers, 4 * size, **like)
    before = torch.randn(layers * batch, size, **like)
    alone, (c, h) = gates.clone(), torch.empty(2, layers * batch, size, **like)
    FORWARD[how](gates, recurrent, b_ih, b_hh, before, c, h)
    for n in range(layers):
        rows, (c_n, h_n) = slice(n * batch, (n + 1) * batch), torch.empty(2, batch, size, **like)
        kernels.plain_cell(alone[rows], recurrent[rows], b_ih[n], b_hh[n], before[rows], c_n, h_n)
        for whole, part in ((gates, alone[rows]), (c, c_n), (h, h_n)):
            torch.testing.assert_close(whole[rows], part, rtol=0, atol=1e-12)


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("how", FORWARD)
def test_large_numbers_do_not_overflow(how):
    for dtype in (torch.float32, torch.float64):
        gates = torch.tensor(
            [[1e4, -1e4, 1e4, -1e4]], dtype=dtype, device=DEVICE
        )  # i = 1, f = 0, g = 1, o = 0
        zeros, one = torch.zeros(4, dtype=dtype, device=DEVICE), torch.ones(1, 1, dtype=dtype, device=DEVICE)
        c, h, output = torch.empty(3, 1, 1, dtype=dtype, device=DEVICE)
        FORWARD[how](gates, zeros[None].clone(), zeros, zeros, one, c, h, output)
        assert (c, h, output) == (1, 0, 0)
        assert gates.tolist() == [[1, 0, 1, 0]]


class OnGPU(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


def test_on_a_gpu_only_those_who_watch_make_it_an_operator(monkeypatch):
    like = [torch.zeros(shape).as_subclass(OnGPU) for shape in ((2, 12), (2, 12), (12,), (12,), (2, 3))]
    forward = *like, torch.zeros(2, 3), torch.zeros(2, 3), None
    backward = like[0], *torch.zeros(4, 2, 3), torch.zeros(2, 12)
    called, log = [], lambda name: lambda *args, **kwargs: called.append((name, len(args), [*kwargs]))
    for name in ("triton_cell", "triton_cell_backward"):
        monkeypatch.setattr(kernels, name, log(name))

    def both():
        kernels.cell(*forward)
        kernels.cell_backward(*backward)

    both()
    direct = [("triton_cell", 5, ["c_after", "h", "output"]), ("triton_cell_backward", 5, ["dgates"])]
    assert called == direct
    found = counters.count(both)
    assert (found.products, found.pointwise) == (0, 2) and called == direct
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        both()
    seen = [event.name for event in profile.events() if event.name.startswith("ed_lib::")]
    assert seen == ["ed_lib::lstm_cell", "ed_lib::lstm_cell_backward"] and called == direct
    both()
    assert called == 2 * direct


def run(program, **environment):
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | environment
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables)
    assert found.returncode == 0, found.stderr
    return found.stdout


NOT_HERE = """
import sys
{before}
import torch
from ed_lib.lstm import LSTM, kernels
print(LSTM(2, 3, rung="fused_pointwise")(torch.zeros(4, 1, 2))[0].shape)  # the twin, on a CPU
try:
    kernels.triton_cell(*[torch.zeros(1, 4)] * 8)
except (ValueError, ImportError) as error:
    print(type(error).__name__, error)
"""


def test_without_triton_the_twin_runs_and_the_kernel_says_what_to_install():
    said = run(NOT_HERE.format(before="sys.modules['triton'] = None"))
    assert "torch.Size([4, 1, 3])" in said
    assert "ImportError the fused step on a GPU needs triton: pip install triton" in said


def test_on_a_cpu_the_kernel_says_what_it_wants():
    assert "ValueError gates is on the device cpu; wanted a CUDA device" in run(NOT_HERE.format(before=""))


COMPILE = """
import json, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ed_lib.lstm import kernels

found = []
for target in (75, 80, 90):
    for kernel in (kernels.cell_kernel, kernels.cell_backward_kernel):
        for number, wide in (("fp32", triton.language.float32), ("fp16", triton.language.float32),
                             ("fp64", triton.language.float64)):
            whole = ("numbers", "size", "layers", "distance")
            constants = {"IN": wide, "BLOCK": kernels.BLOCK}
            types = {n: "constexpr" if n in constants else "i32" if n in whole else "*" + number
                     for n in kernel.arg_names}
            made = triton.compile(ASTSource(kernel, types, constants), target=GPUTarget("cuda", target, 32))
            found.append([target, "ret;" in made.asm["ptx"], made.metadata.shared])
print(json.dumps(found))
"""


def has_ptxas():
    here = Path(importlib.util.find_spec("triton").origin).parent
    return (here / "backends" / "nvidia" / "bin" / "ptxas").exists()


@pytest.mark.skipif(not has_ptxas(), reason="this Triton comes without ptxas")
def test_the_kernels_compile_for_three_gpus(tmp_path):
    found = json.loads(run(COMPILE, TRITON_CACHE_DIR=str(tmp_path)))
    assert len(found) == 3 * 2 * 3
    assert all(whole and not shared for _, whole, shared in found)  # each thread minds its own numbers
