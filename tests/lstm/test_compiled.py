"""What the LSTM's kernels are compiled to, for GPUs that need not be here: what they take of a
multiprocessor, and whether the instructions are those that the kernels were written for.
"""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

pytest.importorskip("triton")
from ed_lib.lstm import kernels, persistent  # noqa: E402
from tests import compiled  # noqa: E402

CHIPS = {  # multiprocessors, and bytes of shared memory for a program: A100, H100 and H200, B200
    80: (108, 163 * 1024),
    90: (132, 227 * 1024),
    100: (148, 227 * 1024),
}
HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
pytestmark = pytest.mark.skipif(compiled.obstacle() is not None, reason=str(compiled.obstacle()))


@pytest.fixture(scope="module", params=CHIPS)
def target(request):
    if request.param > 90 and (reason := compiled.obstacle(request.param)):
        pytest.skip(reason)
    return request.param


def empty(*shape, dtype):
    return torch.empty(shape, dtype=dtype, device="meta" if kernels.INTERPRETED else "cuda")


def cell(target, dtype, batch, size, layers=1, output=True):
    """A launch of the cell, for ``layers`` at once → its job, in a list."""
    gates, recurrent = empty(2, layers * batch, 4 * size, dtype=dtype)
    biases = empty(2, layers, 4 * size, dtype=dtype)
    before, after, h, out = empty(4, layers * batch, size, dtype=dtype)
    arguments = gates, recurrent, *biases, before, after, h, out if output else None
    name = "ed_lib.lstm.kernels:cell_kernel"
    return compiled.jobs(name, lambda: kernels.triton_cell(*arguments), target)


def cell_backward(target, dtype, batch, size):
    gates, dgates = empty(2, batch, 4 * size, dtype=dtype)
    arguments = gates, *empty(4, batch, size, dtype=dtype), dgates
    name = "ed_lib.lstm.kernels:cell_backward_kernel"
    return compiled.jobs(name, lambda: kernels.triton_cell_backward(*arguments), target)


def whole(target, grid, layers, dtype, precision, steps=100, batch=64, hidden=512):
    """A launch of the persistent kernel → its job, in a list."""
    like = dict(dtype=dtype)
    weights = [[*empty(2, 4 * hidden, hidden, **like), *empty(2, 4 * hidden, **like)] for _ in range(layers)]
    x, state = empty(steps, batch, hidden, **like), empty(2, layers, batch, hidden, **like)
    run = persistent.prepare(x, *state, persistent.pack(weights), 0, grid)
    return compiled.jobs("ed_lib.lstm.persistent:kernel", lambda: run.launch(precision), target)


def test_a_cell_keeps_all_in_registers_and_leaves_room_for_others(target):
    dtypes = (HALF, SINGLE, DOUBLE) if target == 90 else (SINGLE,)
    jobs = [job for dtype in dtypes for make in (cell, cell_backward) for job in make(target, dtype, 64, 512)]
    jobs += cell(target, SINGLE, 64, 512, layers=4, output=False)  # the batched wavefront's
    jobs += cell(target, SINGLE, 1, 1) + cell_backward(target, SINGLE, 1, 1)  # each number that may be is a 1
    for job, made in zip(jobs, compiled.compiled(jobs), strict=True):
        assert made.spills <= 8 and made.scratch == 0 and made.shared <= 1024, (job, made)  # 8: of a call
        most = compiled.MULTIPROCESSORS[target].warps // (made.threads // 32)
        assert made.occupancy >= most / 2, (job, made)


SIZES = [(1, HALF, "ieee"), (4, HALF, "ieee"), (1, SINGLE, "ieee"), (1, SINGLE, "tf32")]
FIT = {80: SIZES[:1], 90: SIZES, 100: SIZES}
SPILLS = {80: 0, 90: 0, 100: 256}  # bytes a thread: Blackwell's products leave a memory of their own


def test_the_persistent_kernel_has_the_instructions_that_it_was_written_for(target):
    jobs = []
    for layers, dtype, precision in SIZES:
        grid = persistent.fit(layers, 64, 512, dtype, precision, *CHIPS[target])
        assert ((layers, dtype, precision) in FIT[target]) == (grid is not None)
        jobs += whole(target, grid, layers, dtype, precision) if grid else []
    for sizes, job, made in zip(FIT[target], jobs, compiled.compiled(jobs), strict=True):
        case, (layers, *numbers) = (target, sizes, made), sizes
        assert made.shared <= CHIPS[target][1] and made.scratch == 0, case
        assert made.threads == 32 * job.options["num_warps"] and made.occupancy >= 1, case
        assert made.spills <= SPILLS[target], case
        assert bool(made.products) == (tuple(numbers) != persistent.EXACT), case
        assert made.copies == 0, case  # no h is read ahead of its time
        waits = 1 if layers == 1 else 2  # for the own layer, and for the one below
        assert made.acquires == waits and made.releases == 1, case
        assert compiled.count(made.ptx, r"ld\..*acquire") == waits, case  # it is written as an addition of 0
        assert made.barriers <= 8 * waits + 4, case


def test_every_number_of_the_persistent_kernel_may_be_1():
    """To Triton a 1 is a constant: other types, other code."""
    jobs = []
    for layers in (1, 2):
        for steps, batch, hidden in [(1, 64, 64), (100, 16, 64), (100, 64, 16), (1, 16, 16)]:
            grid = persistent.grid(layers, batch, hidden, HALF, "ieee", 16, 16)
            jobs += whole(90, grid, layers, HALF, "ieee", steps, batch, hidden)
    ones = [{n for n in ("steps", "groups", "tiles") if job.arguments[n] == 1} for job in jobs]
    assert ones == 2 * [{"steps"}, {"groups"}, {"tiles"}, {"steps", "groups", "tiles"}]
    for job, made in zip(jobs, compiled.compiled(jobs), strict=True):
        assert made.spills == 0 and made.products and made.releases == 1, (job, made)


@pytest.mark.parametrize(
    "target, threads, registers, shared, programs",
    [
        (90, 128, 253, 0, 2),  # eight warps of 8,192 registers
        (90, 128, 168, 0, 3),
        (90, 128, 32, 0, 16),  # 64 warps
        (90, 32, 32, 0, 32),
        (90, 256, 129, 0, 1),  # three warps a quarter
        (80, 128, 32, 81 * 1024, 2),  # each with a KiB more
        (80, 128, 32, 82 * 1024, 1),
        (80, 128, 32, 164 * 1024, 0),
        (75, 128, 32, 64 * 1024, 1),
    ],
)
def test_programs_of_a_multiprocessor(target, threads, registers, shared, programs):
    made = compiled.Made(target, threads, registers, 0, shared, 0, {}, {}, {})
    assert made.occupancy == programs


def test_the_longest_loop():
    code = """
        /*0000*/  MOV R1, c[0x0][0x28] ;  /* 0x0000 */
        /*0010*/  @!P0 BAR.SYNC 0x0 ;
        /*0020*/  LDG.E.STRONG.GPU R2, [R4] ;
        /*0030*/  @P1 BRA 0x20 ;
        /*0040*/  FADD R1, R2, R3 ;
        /*0050*/  @!UP0 BRA.U 0x10 ;
        /*0060*/  BRA 0x60;
    """
    loop = compiled.longest_loop(compiled.instructions_of(code))
    assert loop == ["BAR.SYNC", "LDG.E.STRONG.GPU", "BRA", "FADD", "BRA.U"]
