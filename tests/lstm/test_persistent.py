"""The persistent kernel against ``torch.nn.LSTM`` in float64.

Without a GPU it runs in Triton's interpreter, which runs the programs of a grid one after another. So two
things are tested apart: whole grids in which no program waits for a later one, and grids whose programs do
wait for each other, each of them in a process of its own, with the counters in memory that they share.
On a GPU the real launch is tested too, often, since a race shows only sometimes.
"""

import ctypes
import faulthandler
import importlib.util
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

pytest.importorskip("triton")
from ed_lib.lstm import persistent  # noqa: E402
from tools import interpreter  # noqa: E402

DEVICE = "cpu" if persistent.INTERPRETED else "cuda"
TOLERANCE = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}
H200 = dict(multiprocessors=132, shared=227 * 1024)
gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


class Case:
    """Random weights, input and state of a ``torch.nn.LSTM``, rounded to ``dtype``, and what it answers."""

    def __init__(self, steps, batch, inputs, hidden, layers, dtype=torch.float32, device="cpu"):
        torch.manual_seed(steps + 7 * batch + 31 * inputs + 101 * hidden + layers)
        module = torch.nn.LSTM(inputs, hidden, layers).to(dtype).requires_grad_(False)
        shapes = (steps, batch, inputs), *[(layers, batch, hidden)] * 2
        x, h_0, c_0 = (torch.randn(shape).to(dtype) for shape in shapes)
        self.x, self.h_0, self.c_0 = (t.to(device) for t in (x, h_0, c_0))
        self.weights = [[w.to(device, copy=True) for w in layer] for layer in module.all_weights]
        self.module, self.tolerance = module.double().to(device), TOLERANCE[dtype]

    def wanted(self, state=True):
        """y, h_n, c_n in float64, by products in float64."""
        state = (self.h_0.double(), self.c_0.double()) if state else None
        y, (h_n, c_n) = self.module(self.x.double(), state)
        return y, h_n, c_n

    def check(self, answer, state=True):
        y, (h_n, c_n) = answer
        for ours, theirs in zip((y, h_n, c_n), self.wanted(state), strict=True):
            assert ours.dtype == self.x.dtype and ours.shape == theirs.shape
            torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=self.tolerance)


CASES = [  # T, B, I, H, L
    (1, 1, 1, 1, 1),
    (1, 17, 3, 16, 3),
    (5, 3, 7, 11, 1),
    (4, 33, 16, 17, 2),
    (9, 16, 5, 32, 3),
    (3, 2, 40, 65, 2),
]


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_it_answers_as_torch_does(sizes, dtype):
    case = Case(*sizes, dtype, DEVICE)
    before = [t.clone() for t in (case.x, case.h_0, case.c_0)]
    answer = persistent.forward(case.x, (case.h_0, case.c_0), case.weights)
    case.check(answer)
    assert all(torch.equal(a, b) for a, b in zip(before, (case.x, case.h_0, case.c_0), strict=True))
    assert answer[0].is_contiguous()


@pytest.mark.gpu
def test_without_a_state_it_starts_from_zeros_and_packed_weights_serve_twice():
    case = Case(4, 5, 6, 7, 2, device=DEVICE)
    weights = persistent.pack(case.weights)
    case.check(persistent.forward(case.x, None, weights), state=False)
    case.check(persistent.forward(case.x, (case.h_0, case.c_0), weights))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:overflow")
def test_extreme_sums_saturate_without_nan():
    case = Case(3, 2, 4, 5, 1, device=DEVICE)
    case.weights[0][2].copy_(1e4 * torch.tensor([1, -1, 1, 1]).repeat_interleave(5))  # b_ih: i, f, g, o
    y, (_, c_n) = persistent.forward(case.x, (case.h_0, case.c_0), case.weights)
    assert torch.equal(c_n, torch.ones_like(c_n))  # f = 0, i = g = 1
    torch.testing.assert_close(y, torch.full_like(y, torch.tensor(1.0).tanh()), rtol=1e-6, atol=0)


@pytest.mark.skipif(DEVICE == "cuda", reason="the GPU chooses its own grid")
@pytest.mark.parametrize("most", [1, 2, 3])
def test_layers_that_do_not_fit_at_once_are_several_launches(monkeypatch, most):
    case, choose, launched = Case(4, 5, 6, 7, 5), persistent.choose, []
    monkeypatch.setattr(persistent, "choose", lambda n, *rest: choose(n, *rest) if n <= most else None)
    launch = persistent.Run.launch
    count = lambda run, p: launched.append(run.grid.layers) or launch(run, p)  # noqa: E731
    monkeypatch.setattr(persistent.Run, "launch", count)
    case.check(persistent.forward(case.x, (case.h_0, case.c_0), case.weights))
    assert launched == {1: [1] * 5, 2: [2, 2, 1], 3: [3, 2]}[most]


def test_which_grids_fit_an_h200():
    def fit(*sizes, dtype=torch.float16, precision="ieee"):
        return persistent.fit(*sizes, dtype, precision, **H200)

    one, four = fit(1, 64, 512), fit(4, 64, 512)
    assert (one.rows, one.units, one.groups, one.tiles, one.programs) == (16, 16, 4, 32, 128)
    assert (four.rows, four.units, four.groups, four.tiles, four.programs) == (64, 16, 1, 32, 128)
    assert four.shared == (2 * 64 * 512 + 64 * 512) * 2 + 64 * 64 * 4  # W_ih and W_hh, h, z
    assert fit(1, 64, 1024).rows == 32 and fit(1, 64, 4096) is None
    assert fit(5, 64, 512) is None and fit(1, 512, 512).units == 32
    single = dict(dtype=torch.float32)
    assert fit(1, 64, 512, **single).programs == 128 and fit(2, 64, 256, **single) is None
    assert fit(2, 64, 256, **single, precision="tf32").programs == 128
    assert fit(2, 64, 512, **single, precision="tf32") is None


# The barrier, between processes


@pytest.fixture
def run_apart(monkeypatch):
    """``whole_grid`` in a process of its own, where Triton is interpreted: ``run_apart(run, late)``."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # there, also when there is a GPU here
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started = []

    def apart(run, late):
        seen = torch.full_like(run.done, -1).share_memory_()
        spawn = torch.multiprocessing.get_context("spawn")
        started.append(spawn.Process(target=whole_grid, args=(run, late, seen)))
        started[0].start()
        started[0].join(120)  # more than whole_grid takes, which stops its own
        assert started[0].exitcode == 0, (started[0].exitcode, seen, run.done)
        return seen

    yield apart
    for process in started:
        process.kill()
        process.join()


def whole_grid(run, late, seen, limit=40):
    """All programs of the grid, each in a process, but number ``late``, of the first group, only when the
    others of that group can do no more; ``seen`` is what they had counted by then.
    """
    torch.set_num_threads(1)
    fork = torch.multiprocessing.get_context("fork")
    numbers = range(run.grid.programs)
    programs = [fork.Process(target=one_program, args=(run, n), daemon=True) for n in numbers]
    end = time.monotonic() + limit
    try:
        for program in reversed(programs):
            if program is not programs[late]:
                program.start()
        while run.done[0, 0] < run.grid.tiles - 1 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)  # time to go too far, if they did not wait
        seen.copy_(run.done)
        programs[late].start()
        for program in programs:
            program.join(max(end - time.monotonic(), 0))
        sys.exit(any(program.exitcode != 0 for program in programs))
    finally:
        for program in programs:
            if program.pid:
                program.kill()


def one_program(run, number):
    from triton.runtime.interpreter import GridExecutor

    # At the end the interpreter copies each array, from the CPU onto itself. Others may be writing to it.
    GridExecutor._restore_args_dev = lambda *arguments: None
    interpreter.mend()  # here too, in a process that was started afresh
    run.launch("ieee", number, 1)


def shared_run(case, rows, units):
    """The arrays of a launch in memory that several processes share; what is to be computed is NaN."""
    layers, batch, hidden = case.h_0.shape
    grid = persistent.grid(layers, batch, hidden, torch.float32, "ieee", rows, units)
    run = persistent.prepare(case.x, case.h_0, case.c_0, persistent.pack(case.weights), 0, grid)
    for name in ("x", "w_ih", "w_hh", "bias", "h", "c", "done"):
        setattr(run, name, getattr(run, name).clone().share_memory_())
    run.h[:, 1:, :, : grid.tiles * units] = float("nan")  # the units beyond are padding, and stay 0
    return run


@pytest.mark.parametrize(
    "sizes, seen",
    [  # T, B, I, H, L; the count of each layer and group when one program is missing
        ((6, 3, 5, 32, 2), [[1], [0]]),
        ((4, 20, 5, 40, 1), [[2, 3 * 4]]),
    ],
)
def test_programs_in_several_processes_wait_for_each_other(run_apart, sizes, seen):
    case = Case(*sizes)
    steps, batch, _, hidden, _ = sizes
    run = shared_run(case, 16, 16)
    before = run_apart(run, late=0)
    assert before[:, 0].tolist() == [row[0] for row in seen]  # a step of the others, and no further
    assert (run.done == run.grid.tiles * steps).all()
    h, c = run.h[:, :, :batch, :hidden], run.c[:, :batch, :hidden]
    case.check((h[-1, 1:], (h[:, -1], c)))


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU a program does not run alone")
def test_a_program_that_does_not_wait_reads_what_is_not_there():
    run = shared_run(Case(3, 2, 5, 32, 1), 16, 16)
    run.done += 10**6  # as if all had finished long ago
    run.launch("ieee", 0, 1)
    assert run.h[0, 1, :, :16].isfinite().all() and run.h[0, 2, :, :16].isnan().all()


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU's memory has no such pages")
@pytest.mark.parametrize("layers", [1, 2])
def test_reading_ahead_stays_inside_the_input(layers):
    case = Case(3, 16, 5, 16, layers)
    grid = persistent.grid(layers, 16, 16, torch.float32, "ieee", 16, 16)
    run = persistent.prepare(case.x, case.h_0, case.c_0, persistent.pack(case.weights), 0, grid)
    run.x = before_a_wall(run.x)
    assert exit_code(ctypes.string_at, run.x.data_ptr() + run.x.nbytes, 1) == -signal.SIGSEGV
    assert exit_code(run.launch, "ieee") == 0


def before_a_wall(tensor):
    """A copy whose last number is the last before memory that nobody may read."""
    page = mmap.PAGESIZE
    room = -(-tensor.nbytes // page) * page
    memory = mmap.mmap(-1, room + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + room), page, 0) == 0
    start = room - tensor.nbytes
    copy = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=start)
    return copy.view(tensor.shape).copy_(tensor)


def exit_code(function, *arguments):
    """Of a process of its own that calls the function."""

    def call():
        faulthandler.disable()  # a segmentation fault may be what is wanted
        function(*arguments)

    process = torch.multiprocessing.get_context("fork").Process(target=call)
    process.start()
    process.join()
    return process.exitcode


# Bad input


def good():
    case = Case(3, 2, 5, 7, 2, device=DEVICE)
    return case.x, (case.h_0, case.c_0), case.weights


def change(layer, index, function):
    def changed(x, state, weights):
        weights[layer][index] = function(weights[layer][index])
        return x, state, weights

    return changed


BAD = {
    "x has the shape (0, 2, 5); wanted (T, B, 5)": lambda x, s, w: (x[:0], s, w),
    "x has the shape (3, 2, 4); wanted (T, B, 5)": lambda x, s, w: (x[:, :, 1:], s, w),
    "x.dtype is torch.float16; wanted one of torch.float32": lambda x, s, w: (x.half(), s, w),
    "x requires a gradient, and there is no backward": lambda x, s, w: (x.requires_grad_(), s, w),
    "h_0 has the shape (1, 2, 7); wanted (2, 2, 7)": lambda x, s, w: (x, (s[0][:1], s[1]), w),
    "c_0.dtype is torch.float64; wanted one of": lambda x, s, w: (x, (s[0], s[1].double()), w),
    "weight_hh_l0 has the shape (28,); wanted (4H, H)": change(0, 1, lambda w: w[:, 0]),
    "weight_hh_l0.dtype is torch.float64; wanted one of": change(0, 1, lambda w: w.double()),
    "weight_ih_l1 has the shape (28, 6); wanted (28, 7)": change(1, 0, lambda w: w[:, 1:]),
    "bias_hh_l1.dtype is torch.float16; wanted one of torch.float32": change(1, 3, lambda b: b.half()),
    "bias_hh_l1 requires a gradient, and there is no backward": change(1, 3, lambda b: b.requires_grad_()),
    "precision is 'tf16'; wanted one of 'ieee', 'tf32'": lambda x, s, w: (x, s, w, "tf16"),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message):
    *given, precision = (*BAD[message](*good()), "ieee")[:4]
    with pytest.raises(ValueError, match=re.escape(message)):
        persistent.forward(*given, precision=precision)


@pytest.mark.gpu
def test_weights_that_need_gradients_are_welcome_under_no_grad():
    x, state, weights = good()
    with torch.no_grad():
        wanted = persistent.forward(x, state, weights)
        answer = persistent.forward(x, state, [[w.requires_grad_() for w in layer] for layer in weights])
    assert torch.equal(answer[0], wanted[0]) and not answer[0].requires_grad


def test_a_layer_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(persistent, "choose", lambda *sizes: None)
    with pytest.raises(
        ValueError, match="weights of 7 units do not fit this GPU's chip with B = 2 in torch."
    ):
        persistent.forward(*good())


def fresh(code, **env):
    """Runs Python in a fresh process, without Triton's interpreter → what it printed."""
    env = {**{n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}, **env}
    root = Path(persistent.__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


USE_ON_CPU = """
import torch
from ed_lib.lstm import persistent
try:
    persistent.forward(torch.zeros(1, 1, 1), None, [[torch.zeros(4, 1)] * 2 + [torch.zeros(4)] * 2])
except (ImportError, ValueError) as error:
    print(type(error).__name__, error, persistent.INTERPRETED)
"""


def test_tensors_on_the_cpu_need_the_interpreter_and_everything_needs_triton():
    assert fresh(USE_ON_CPU).startswith("ValueError x is on the device cpu; wanted CUDA, or TRITON_")
    said = fresh("import sys; sys.modules['triton'] = None" + USE_ON_CPU)
    assert said.startswith("ImportError the persistent kernel needs triton 3.3 or later, which PyTorch 2.7")


# What it compiles to, for a GPU that need not be here

COMPILE = """
import json, re, subprocess, tempfile, torch, triton
from pathlib import Path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ed_lib.lstm import persistent

tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
found = []
for layers, batch, hidden, dtype, precision in json.loads(SIZES):
    full = dict(fp16=torch.float16, bf16=torch.bfloat16, fp32=torch.float32)[dtype]
    grid = persistent.fit(layers, batch, hidden, full, precision, 132, 227 * 1024)
    names = persistent.kernel.arg_names
    constants = dict(STACKED=layers > 1, ROWS=grid.rows, UNITS=grid.units, HIDDEN=grid.hidden)
    constants["PRECISION"] = precision
    pointers = dict(x=dtype, w_ih=dtype, w_hh=dtype, bias="fp32", h=dtype, c="fp32", done="i32")
    types = {n: "*" + pointers[n] if n in pointers else "i32" for n in names}
    types |= dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in pointers or n == "one"}
    source = ASTSource(persistent.kernel, types, constants, aligned)
    options = dict(num_warps=grid.warps, num_stages=1, launch_cooperative_grid=True, enable_fp_fusion=True)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    before, loop = made.asm["ttgir"].split("scf.for", 1)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(made.asm["cubin"])
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True).stdout
    registers, stack = map(int, re.search(r"REG:(\\d+) STACK:(\\d+)", usage).groups())
    found.append(dict(
        shared=made.metadata.shared, planned=grid.shared, registers=registers, spilled=stack,
        loads=[part.count("tt.load ") for part in (before, loop)], copies=loop.count("async_copy"),
        kept=len(re.findall(r"local_alloc .*x%d" % grid.hidden, before)),
        tensor_cores=loop.count("warp_group_dot "), cooperative=made.metadata.launch_cooperative_grid,
    ))
print(json.dumps(found))
"""
SIZES = [  # L, B, H, dtype, precision
    (1, 64, 512, "fp16", "ieee"),
    (1, 64, 512, "bf16", "ieee"),
    (4, 64, 512, "fp16", "ieee"),
    (1, 64, 512, "fp32", "tf32"),
    (1, 64, 512, "fp32", "ieee"),
    (1, 64, 1024, "fp16", "ieee"),
    (2, 64, 256, "fp32", "tf32"),
]


def has_compiler():
    here = Path(importlib.util.find_spec("triton").origin).parent / "backends" / "nvidia" / "bin"
    return (here / "ptxas").exists() and (here / "cuobjdump").exists()


@pytest.mark.skipif(not has_compiler(), reason="this Triton comes without ptxas")
def test_on_an_h200_the_weights_stay_on_chip_and_no_register_is_spilled(tmp_path):
    code = f"SIZES = {json.dumps(json.dumps(SIZES))}" + COMPILE
    for sizes, made in zip(SIZES, json.loads(fresh(code, TRITON_CACHE_DIR=str(tmp_path))), strict=True):
        layers, _, _, dtype, precision = sizes
        assert made["spilled"] == 0, (sizes, made)
        assert made["shared"] <= made["planned"] <= 227 * 1024, (sizes, made)
        matrices = 1 if layers == 1 else 2
        assert made["kept"] == matrices, (sizes, made)  # in shared memory, before the loop over the steps
        reads = 2 if layers == 1 else 3  # x and h, and h of the layer below
        assert made["loads"][1] == reads, (sizes, made)
        assert made["copies"] == 0, (sizes, made)  # nothing is read ahead of its time
        assert made["tensor_cores"] == (0 if (dtype, precision) == ("fp32", "ieee") else matrices), sizes
        assert made["cooperative"]


# On a GPU


@pytest.mark.oracle
@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_on_a_gpu_it_is_as_right_as_torch_and_answers_the_same_each_time(dtype, layers):
    case = Case(100, 64, 512, 512, layers, dtype, DEVICE)
    weights = persistent.pack(case.weights)
    wanted = case.wanted()
    module = torch.nn.LSTM(512, 512, layers, device=DEVICE, dtype=dtype).requires_grad_(False)
    module.load_state_dict(case.module.state_dict())
    try:
        first = persistent.forward(case.x, (case.h_0, case.c_0), weights)
    except ValueError as error:
        pytest.skip(str(error))
    theirs = module(case.x, (case.h_0, case.c_0))
    for a, b, c in zip(flat(first), flat(theirs), wanted, strict=True):
        assert (a - c).abs().max() <= max(2 * (b - c).abs().max(), 1e-5)
    for _ in range(50):  # a race shows now and then only
        again = persistent.forward(case.x, (case.h_0, case.c_0), weights)
        assert all(torch.equal(a, b) for a, b in zip(flat(again), flat(first), strict=True))


@pytest.mark.oracle
@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sizes", [(20, 70, 33, 129, 3), (2, 1, 1, 500, 2), (300, 16, 8, 48, 5)], ids=str)
def test_on_a_gpu_odd_sizes_again_and_again(sizes, dtype):
    case = Case(*sizes, dtype, DEVICE)
    case.tolerance *= 5
    for _ in range(50):
        case.check(persistent.forward(case.x, (case.h_0, case.c_0), case.weights))


@pytest.mark.gpu
@gpu
def test_on_a_gpu_tf32_is_less_exact_and_a_graph_answers_the_same():
    case = Case(50, 64, 512, 512, 1, torch.float32, DEVICE)
    case.tolerance = 1e-2
    weights, state = persistent.pack(case.weights), (case.h_0, case.c_0)
    wanted = persistent.forward(case.x, state, weights, precision="tf32")
    case.check(wanted)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = persistent.forward(case.x, state, weights, precision="tf32")
    graph.replay()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(flat(answer), flat(wanted), strict=True))


def flat(answer):
    y, (h_n, c_n) = answer
    return y, h_n, c_n
