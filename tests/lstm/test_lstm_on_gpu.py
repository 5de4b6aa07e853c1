"""The step of an LSTM against torch.nn.LSTMCell and autograd: the plain twin, and the Triton
kernel, in its interpreter where there is no GPU.
"""

import gc
import importlib.util
import json
import os
import subprocess
import sys
import weakref
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

pytest.importorskip("triton")
from ed_lib import records  # noqa: E402
from ed_lib.lstm import lstm_on_gpu  # noqa: E402
from tests import cuda  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORWARD = {
    "plain": lstm_on_gpu.plain_cell,
    "triton": lstm_on_gpu.triton_cell,
    "operator": lstm_on_gpu.cell,
}
SIZES = [
    (1, 1),
    (3, 5),
    (2, 128),
    (7, 65),
]  # (B, H): less than a block of 256, more, and not a multiple
ERROR = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LIKE = dict(dtype=torch.float64, device=DEVICE)


def activated(a):
    """a (B, 4H), before the activations → i, f, g, o."""
    i, f, g, o = a.chunk(4, 1)
    return torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("how", FORWARD)
@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("batch, size", SIZES)
def test_a_step_forward(how, dtype, batch, size):
    torch.manual_seed(batch * size)
    x, h, c = (torch.randn(batch, size, **LIKE) for _ in range(3))
    theirs = torch.nn.LSTMCell(size, size, **LIKE)
    a = (x @ theirs.weight_ih.t()).detach(), (h @ theirs.weight_hh.t()).detach()  # (B, 4H) each
    arrays = [t.detach().to(dtype).clone() for t in (*a, theirs.bias_ih, theirs.bias_hh, c)]
    pre = sum(t.double() for t in arrays[:4])
    c_after, h_after, output = torch.empty(3, batch, size, dtype=dtype, device=DEVICE)
    FORWARD[how](*arrays, c_after=c_after, h=h_after, output=output)
    found = h_after, c_after, arrays[0]
    for ours, right in zip(found, (*theirs(x, (h, c)), torch.cat(activated(pre), 1)), strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=0, atol=4 * ERROR[dtype])
    assert torch.equal(output, h_after)


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("how", FORWARD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_numbers_do_not_overflow(how, dtype):
    like = dict(dtype=dtype, device=DEVICE)
    gates = torch.tensor([[1e4, -1e4, 1e4, -1e4]], **like)  # i = 1, f = 0, g = 1, o = 0
    zeros, one, (c, h, output) = (
        torch.zeros(4, **like),
        torch.ones(1, 1, **like),
        torch.empty(3, 1, 1, **like),
    )
    FORWARD[how](gates, zeros[None].clone(), zeros, zeros, one, c_after=c, h=h, output=output)
    assert (c, h, output) == (1, 0, 0) and gates.tolist() == [[1, 0, 1, 0]]


def run(program, *arguments, **environment):
    variables = {
        key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"
    } | environment
    found = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=variables
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


class Graph:
    """In the place of CUDA's."""

    def replay(self):
        self.replayed = True


def test_a_graph_keeps_its_function_and_so_its_arrays_alive(monkeypatch):
    class Owner:
        runs = 0

        def run(self):
            self.runs += 1

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    owner = Owner()
    alive, replay = weakref.ref(owner), lstm_on_gpu.capture(owner.run)
    del owner
    gc.collect()
    replay()
    assert alive().runs == 2, "once before the capture, once in it, and not in the replay"
    del replay
    gc.collect()
    assert alive() is None


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_graph_of_a_function_that_nobody_else_holds_answers_right():
    def graph_of(weight):
        answer = torch.zeros(64, 64, device="cuda")
        return lstm_on_gpu.capture(lambda: torch.mm(weight, weight, out=answer)), answer

    graph, answer = graph_of(torch.eye(64, device="cuda"))
    gc.collect()
    torch.cuda.empty_cache()  # memory that nothing held would be gone
    other = torch.full((64, 64), float("nan"), device="cuda")
    graph()
    assert torch.equal(answer, torch.eye(64, device="cuda")) and other.isnan().all()


NOT_HERE = """
import sys
sys.modules["triton"] = None
import torch
from ed_lib.lstm import LSTM, lstm_on_gpu
print(LSTM(2, 3, rung="fused_pointwise")(torch.zeros(4, 1, 2))[0].shape)  # the twin, on a CPU
try:
    lstm_on_gpu.triton_cell(*[torch.zeros(1, 4)] * 8)
except ImportError as error:
    print(error)
"""


def test_without_triton_the_twin_runs_and_the_kernel_says_what_to_install():
    said = run(NOT_HERE)
    assert "torch.Size([4, 1, 3])" in said
    assert "the fused step on a GPU needs triton: pip install triton" in said


COMPILE = """
import itertools, json, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ed_lib.lstm import lstm_on_gpu

found, kernel = [], lstm_on_gpu.cell_kernel
for capability, number in itertools.product(json.loads(sys.argv[1]), sys.argv[2:]):
    wide = triton.language.float64 if number == "fp64" else triton.language.float32
    constants = {"IN": wide, "BLOCK": lstm_on_gpu.BLOCK}
    types = {n: "constexpr" if n in constants else "i32" if n in ("numbers", "size") else "*" + number
             for n in kernel.arg_names}
    target = GPUTarget("cuda", capability, 32)
    made = triton.compile(ASTSource(kernel, types, constants), target=target)
    found.append([len(made.asm["cubin"]) > 1000, made.metadata.shared])
print(json.dumps(found))
"""
NUMBERS = "fp32", "fp16", "bf16", "fp64"


def has_ptxas():
    here = Path(importlib.util.find_spec("triton").origin).parent
    return (here / "backends" / "nvidia" / "bin" / "ptxas").exists()


@pytest.mark.skipif(not has_ptxas(), reason="this Triton comes without ptxas")
@pytest.mark.parametrize("capabilities", [
    (75, 100), pytest.param(cuda.CAPABILITIES, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_kernel_compiles_for_any_gpu(tmp_path, capabilities):
    """The oldest and the newest; the weekly run compiles for those between them too."""
    ask = json.dumps(capabilities)
    found = json.loads(run(COMPILE, ask, *NUMBERS, TRITON_CACHE_DIR=str(tmp_path)))
    # Nothing shared: each thread minds its own numbers.
    assert found == len(capabilities) * len(NUMBERS) * [[True, 0]]


def test_it_is_the_only_kernel_in_triton():
    texts = [path.read_text() for path in records.ROOT.glob("ed_lib/**/*.py")]
    for path in records.ROOT.glob("book/*/*.ipynb"):
        texts += ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
    assert sum(text.count(".program_id(") for text in texts) == 1
