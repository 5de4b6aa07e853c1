"""The layers as GPU kernels in Triton: one launch for a whole forward, one for the update of a whole stack.

Letters: D hidden-to-hidden layers, K independent networks, B batch, C = 2W cells of a layer, its W excitatory
ones first. All arrays are contiguous tensors on one GPU (or, with TRITON_INTERPRET=1 set before Triton is
imported, on the CPU), all float32 or all float64. A kernel is given addresses, so nobody else checks this.

states (D + 1, K, B, C): what the cells answer; states[0] is the input layer's answer.
weight (D, K, C, C): [d, k, i, o] from cell i to cell o, times the receiver's sign s_o.
bias (D, K, n, C): times the receiver's sign too; n = 1 for free biases, 2 for weights from bias cells.
"""

import math
from typing import Any, NamedTuple

import torch

from ed_lib import arrays, devices
from ed_lib.ed import rules
from ed_lib.ed.gpu_kernels import INTERPRETED, forward_kernel, sweep_kernel, triton, update_kernel

TILE_BYTES = 64 * 1024  # the most that one layer's weights may take of a multiprocessor's shared memory


class Forward(NamedTuple):
    """How the forward kernel is cut. ``rows``: samples of a program, a power of two; from 16 on by tl.dot,
    else by multiplying and summing. ``precision``: tl.dot's input_precision. ``stages``: layers whose weights
    are on chip or on their way to it, at the most.
    """

    rows: int
    precision: str
    warps: int
    stages: int


class Update(NamedTuple):
    """How the update kernel is cut: ``rows`` of the batch at a time, for a ``tile`` × ``tile`` of weights."""

    rows: int
    tile: int
    precision: str
    warps: int
    stages: int


def obstacle(width: int, dtype: Any = "float32") -> str | None:
    """Why a layer of ``width`` pairs does not fit the forward kernel on a GPU, in words; None when it does.

    Its weights, C × C with C rounded up to a power of two, go through a multiprocessor's shared memory, and
    64 KiB of them (64 pairs in float32, 32 in float64) leave room for the rest in a consumer GPU's 99 KiB.
    """
    name = arrays.dtype_name(dtype)
    size = padded(2 * width) ** 2 * (4 if name == "float32" else 8)  # bytes
    needs = f"the path 'kernel' needs {size // 1024} KiB of shared memory for the width {width} in {name}"
    return None if size <= TILE_BYTES else f"{needs}; at most {TILE_BYTES // 1024} KiB fit"


def forward_cut(states: torch.Tensor) -> Forward:
    """The :class:`Forward` for these arrays on their GPU; `make gpu` measures others beside it.

    A layer is a chain of latencies, so the fewer samples a program has the shorter it is, and the fewer warps
    that wait for each other: one sample, exact in float32, and a warp for 16 KiB of weights, which it can
    hold in registers, where the weights come fast enough (Hopper) and all programs run at once; 16 on the
    tensor cores of other GPUs, three products of TF32 parts; two where there are none.
    """
    _, networks, batch, cells = states.shape
    capability, programs = gpu(states)
    bytes = padded(cells) ** 2 * states.itemsize  # of a layer's weights
    if capability >= (9, 0) and batch * networks <= programs:
        return Forward(1, "ieee", max(1, bytes // (16 * 1024)), max(2, min(8, 192 * 1024 // bytes)))
    rows = 16 if INTERPRETED or precision(states) == "tf32x3" else 2
    stages = 1 + min(max(TILE_BYTES // bytes, 1), 3)
    return Forward(rows, precision(states), min(padded(cells) // 8, 8), stages)


def update_cut(batch: int, cells: int, states: torch.Tensor) -> Update:
    """The :class:`Update` for layers with so many cells, likewise: few enough registers for four programs on
    a multiprocessor, one of which computes while others wait, and the next rows on their way.
    """
    capability, tile = gpu(states)[0], min(padded(cells), 64 if states.dtype == torch.float32 else 32)
    if capability >= (8, 0):
        return Update(32 if capability >= (9, 0) else 16, tile, precision(states), 4, 2)
    return Update(32, tile, precision(states), 4, 1)


def forward(
    states: torch.Tensor, weight: torch.Tensor, bias_term: torch.Tensor, u0: float, *,
    cut: Forward | None = None, unless: tuple[torch.Tensor, float] | None = None,
) -> None:  # fmt: skip
    """Fills states[1:] from states[0] in one launch: states[d + 1] = σ(states[d] @ weight[d] + bias_term[d]).

    states (D + 1, K, B, C), weight (D, K, C, C), bias_term (D, K, 1, C). cut: a :class:`Forward`, by default
    ``forward_cut``'s. unless: (a float32 number on the device, a bound): nothing is done if the number, which
    nobody waits for, is at most the bound.
    """
    depth, networks, batch, cells = len(weight), *states.shape[1:]
    if not depth:
        return
    cut, size = cut or forward_cut(states), padded(cells)
    number, bound = unless or (states, 0.0)
    with torch.cuda.device_of(states):
        forward_kernel[triton.cdiv(batch, cut.rows), networks](
            states, weight, bias_term, number, bound, depth, networks, batch, cells,
            SCALE=slope_of_exponent(u0), ROWS=cut.rows, CELLS=size, STAGES=cut.stages,
            PRECISION=cut.precision, MASKED=cells != size or batch % cut.rows != 0,
            UNLESS=unless is not None, num_warps=cut.warps, enable_fp_fusion=True,
        )  # fmt: skip


def sweep(
    old: torch.Tensor, new: torch.Tensor, weight: torch.Tensor, bias_term: torch.Tensor, u0: float,
    changes: torch.Tensor, pair: int, tolerance: float, first: int, last: bool,
) -> None:  # fmt: skip
    """One Jacobi sweep, unless a pair of sweeps before it has changed too little: see ``ed_lib.ed.sweeps``.

    new[d + 1] = σ(old[d] @ weight[d] + bias_term[d]) for all layers d ≥ ``first`` at once; arrays as in
    ``forward``. changes (P + 1,) float32: the largest change by each pair; nothing is done if changes[pair −
    1] is at most ``tolerance``. ``last``: of the pair, whose change goes into changes[pair].
    """
    depth, networks, batch, cells = old[1:].shape
    few = old.itemsize == 8 or gpu(old)[0] >= (10, 0)  # of 64 rows Triton 3.6 makes nothing for Blackwell
    rows, size = min(padded(batch), 32 if few else 64), padded(cells)
    with torch.cuda.device_of(old):
        sweep_kernel[(depth - first) * networks, triton.cdiv(batch, rows)](
            old, new, weight, bias_term, changes, pair, tolerance, first, networks, batch, cells,
            SCALE=slope_of_exponent(u0), ROWS=rows, CELLS=size, PRECISION=precision(old),
            MASKED=cells != size or batch % rows != 0, LAST=last, num_warps=min(size // 8, 8),
            enable_fp_fusion=True,
        )  # fmt: skip


def update_stack(
    params: dict[str, torch.Tensor], x: torch.Tensor, states: torch.Tensor, out: torch.Tensor,
    error: torch.Tensor, rate: torch.Tensor | float, rule: str,
) -> None:  # fmt: skip
    """Adds one ED step to all parameters: the hidden layers in one launch, the outer two beside it.

    params: as EDNetwork keeps them; x (B, I), states (D + 1, K, B, C), out (K, B, 2), error (B, K); rate is
    α/B, a number or an array of one.
    """
    step = rate if isinstance(rate, torch.Tensor) else states.new_full((), rate)

    def learn(name: str, sent: torch.Tensor, received: torch.Tensor) -> None:
        stack = (params[f"{name}.weight"], params[f"{name}.bias"])
        weight, bias = stack if name == "hidden" else (array[None] for array in stack)
        update(weight, bias, sent, received, error.contiguous(), step, rule)

    with devices.fork(states.device, 0) as (beside,):
        learn("hidden", states[:-1], states[1:])
        with beside.use():
            learn("input", x, states[:1])
            learn("output", states[-1:], out[None])


def update(
    weight: torch.Tensor, bias: torch.Tensor, sent: torch.Tensor, received: torch.Tensor, error: torch.Tensor,
    rate: torch.Tensor, rule: str, *, cut: Update | None = None,
) -> None:  # fmt: skip
    """One ED step of N layers of I senders and O receivers, in place and in one launch; no layer waits.

    weight[n, k, i, o] += rate · Σ_b sent[n, k, b, i] · g_i[b] · y(1 − y)[n, k, b, o] · s_o, y = received,
    where g_i is error[b, k] for the rule "signed"; for "kaneko" its positive part for excitatory senders and
    its negative part for inhibitory ones. A free bias gets error, bias cells what a sender of 0.8 gets.

    weight (N, K, I, O), bias (N, K, n, O), sent (N, K, B, I), received (N, K, B, O), error (B, K), rate: α/B,
    one number on the device. For the input layer sent is x (B, I/2): both types of sender send it. cut: an
    :class:`Update`.
    """
    if not len(weight):
        return
    layers, networks, batch, receivers = received.shape
    senders, shared = weight.shape[-2], sent.ndim == 2
    cut = cut or update_cut(batch, max(senders, receivers), received)
    tile_in, tile_out = (min(cut.tile, padded(cells)) for cells in (senders, receivers))
    programs = layers * networks * triton.cdiv(senders, tile_in) * triton.cdiv(receivers, tile_out)
    with torch.cuda.device_of(received):
        update_kernel[(programs,)](
            weight, bias, sent, received, error, rate, networks, batch, senders, receivers,
            SIGNED=rule == "signed", SHARED=shared, N_BIAS=bias.shape[2], TILE_IN=tile_in, TILE_OUT=tile_out,
            ROWS=min(padded(batch), cut.rows), STAGES=cut.stages, PRECISION=cut.precision,
            BIAS_CELL=rules.BIAS_CELL, num_warps=cut.warps, enable_fp_fusion=True,
        )  # fmt: skip


def slope_of_exponent(u0: float) -> float:
    """−2/u₀ · log₂e, so that 2^(this · u) is exp(−2u/u₀)."""
    return -2 / u0 * math.log2(math.e)


def padded(n: int) -> int:
    """The next power of two, 16 at the least: arrays on chip want the one, tl.dot the other."""
    return max(16, 1 << (n - 1).bit_length())


def gpu(like: torch.Tensor) -> tuple[tuple[int, int], int]:
    """(compute capability, multiprocessors); of a GPU before tensor cores for the interpreter."""
    if INTERPRETED and not like.is_cuda:
        return (0, 0), 0
    properties = torch.cuda.get_device_properties(like.device)
    return (properties.major, properties.minor), properties.multi_processor_count


def precision(like: torch.Tensor) -> str:
    """How ``tl.dot`` multiplies: float32 in three products of TF32 parts where there are tensor cores."""
    single = like.dtype == torch.float32 and not INTERPRETED
    return "tf32x3" if single and gpu(like)[0] >= (8, 0) else "ieee"
