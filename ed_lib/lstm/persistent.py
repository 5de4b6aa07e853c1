"""A persistent LSTM in Triton: one launch for a whole sequence, with the weights on chip all the while.

An LSTM that takes one launch for each step reads the recurrent matrix anew at each step. Here a program of
the grid owns a few hidden units of one layer and a few rows of the batch for good. Before the first step it
reads its slice of the weights, ``units`` lines of each gate, into its multiprocessor's shared memory; its
part of c stays in registers from the first step to the last. What travels is h alone. At each step a program
writes its units of the new h, adds 1 to a counter, waits until its neighbours have done so too, and reads
all units of h, through the L2 cache. Batch rows are independent: only programs with the same rows wait.

Several layers run as a wavefront in the same launch: a program of layer l holds its slices of W_ih and W_hh,
and takes step t as soon as layer l − 1 has. (The first layer's input product needs no waiting: one ordinary
product for all steps is made before.)

Programs that wait for each other must all be running. So there is at most one for each multiprocessor, and
the launch is cooperative: the driver refuses a grid that cannot run all at once. Forward only, one direction.
After Diamos and others, "Persistent RNNs: stashing recurrent weights on-chip", ICML 2016, who kept the
weights in registers; Triton puts them into shared memory.

Letters: T time steps, B batch, I inputs, H hidden, L layers; gates in PyTorch's order i, f, g, o. Inside, B
is padded with zeros to a multiple of ``rows`` and H to a power of two, so that no load needs a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ed_lib import check
from ed_lib.lstm.kernels import INTERPRETED, triton
from ed_lib.lstm.persistent_kernel import kernel

NAMES = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
EXACT = torch.float32, "ieee"  # is multiplied without tensor cores
TILES = ((16, 16), (32, 16), (64, 16), (32, 32), (64, 32))  # (rows, units): the first that fits is taken


@dataclass(frozen=True)
class Grid:
    """The programs of a launch, in the order (layer, group of rows, tile of units)."""

    layers: int
    groups: int  # of ``rows`` batch rows each
    tiles: int  # of ``units`` hidden units each
    rows: int
    units: int
    hidden: int  # H, padded
    warps: int  # of a program: with fewer of them registers spill
    shared: int  # bytes of shared memory that a program takes at most: weights, h, four gates in float32

    @property
    def programs(self) -> int:
        return self.layers * self.groups * self.tiles


def grid(
    layers: int, batch: int, hidden: int, dtype: torch.dtype, precision: str, rows: int, units: int
) -> Grid:
    """The :class:`Grid` with so many rows and units a program."""
    matrices = 1 if layers == 1 else 2  # W_hh, and above the first layer W_ih
    shared = (matrices * 4 * units + rows) * _padded(hidden) * dtype.itemsize + 4 * units * rows * 4
    warps = 16 if (dtype, precision) == EXACT else 4 if rows == 16 and dtype.itemsize == 2 else 8
    return Grid(layers, -(-batch // rows), -(-hidden // units), rows, units, _padded(hidden), warps, shared)


def fit(
    layers: int,
    batch: int,
    hidden: int,
    dtype: torch.dtype,
    precision: str,
    multiprocessors: int,
    shared: int,
) -> Grid | None:
    """The first :class:`Grid` of ``TILES`` that fits so many multiprocessors, a program on each, with so many
    bytes of shared memory. None if there is none, and for several layers without tensor cores, which keep the
    operands of a product in registers: those of two do not fit.
    """
    grids = (grid(layers, batch, hidden, dtype, precision, *tile) for tile in TILES)
    fits = (g for g in grids if g.programs <= multiprocessors and g.shared <= shared)
    return None if layers > 1 and (dtype, precision) == EXACT else next(fits, None)


@dataclass
class Weights:
    """The weights as the kernel reads them, padded: copies, to be packed anew when a weight changes."""

    layers: list[Sequence[torch.Tensor]]  # of (w_ih, w_hh, b_ih, b_hh), as given
    w_ih: torch.Tensor  # (L, 4, H, H), without the first layer's, which is not read
    w_hh: torch.Tensor  # (L, 4, H, H)
    bias: torch.Tensor  # (L, 4, H) float32


def pack(weights: Sequence[Sequence[torch.Tensor]]) -> Weights:
    """:class:`Weights` from (w_ih, w_hh, b_ih, b_hh) for each layer."""
    like = weights[0][1]
    half = torch.float16, torch.bfloat16  # the interpreter multiplies the bits of bfloat16 as whole numbers
    check.choice("weight_hh_l0.dtype", like.dtype, (torch.float32, *half[: 1 if INTERPRETED else 2]))
    check.shape("weight_hh_l0", tuple(like.shape), ("4H", "H"))
    hidden = like.shape[1]
    for n, layer in enumerate(weights):
        shapes = (4 * hidden, hidden if n else "I"), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)
        for name, tensor, shape in zip(NAMES, layer, shapes, strict=True):
            _check(f"{name}_l{n}", tensor, like, shape)
    w_ih, w_hh, b_ih, b_hh = zip(*weights, strict=True)
    bias = torch.stack(b_ih).float() + torch.stack(b_hh).float()  # (L, 4H)
    padded = len(w_hh), 4, _padded(hidden)
    both = (torch.zeros_like(like), *w_ih[1:]), w_hh
    gates = (torch.stack(w).unflatten(1, (4, hidden)) for w in both)  # (L, 4, H, H) each
    upward, across = (_pad(w, *padded, padded[2]) for w in gates)
    return Weights(list(weights), upward, across, _pad(bias.unflatten(1, (4, hidden)), *padded))


def forward(
    x: torch.Tensor, state: Sequence[torch.Tensor] | None,
    weights: Weights | Sequence[Sequence[torch.Tensor]], *, precision: str = "ieee",
) -> tuple:  # fmt: skip
    """What ``torch.nn.LSTM`` answers, computed with the weights on chip: y (T, B, H), (h_n, c_n) (L, B, H).

    x (T, B, I); state: (h_0, c_0), each (L, B, H), or None for zeros; weights: from ``pack``, or for each
    layer w_ih (4H, I), above the first (4H, H), w_hh (4H, H), b_ih (4H,), b_hh (4H,), as
    ``torch.nn.LSTM.all_weights``, packed here. All on one CUDA device, all float32, float16 or bfloat16. Sums
    and c are float32, but the input product of a launch's first layer, which is PyTorch's and follows its
    settings, is rounded to x's dtype. precision: tl.dot's input_precision for float32, "ieee" or "tf32".
    As many layers as fit are one launch: at H = 512, B = 64 on an H200 four in float16, one in float32.
    Before Ampere no layer fits. On a CPU it runs if TRITON_INTERPRET=1 was set before this was imported.
    """
    if triton is None or tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3):
        raise ImportError("the persistent kernel needs triton 3.3 or later, which PyTorch 2.7 brings")
    check.choice("precision", precision, ("ieee", "tf32"))
    weights = weights if isinstance(weights, Weights) else pack(weights)
    layers, hidden = weights.w_hh.shape[0], weights.layers[0][1].shape[1]
    _check("x", x, weights.w_hh, ("T", "B", weights.layers[0][0].shape[1]))
    if not x.is_cuda and not INTERPRETED:
        raise ValueError(f"x is on the device {x.device}; wanted CUDA, or TRITON_INTERPRET=1 at the start")
    steps, batch, _ = x.shape
    h_0, c_0 = (x.new_zeros(layers, batch, hidden),) * 2 if state is None else state
    for name, tensor in (("h_0", h_0), ("c_0", c_0)):
        _check(name, tensor, x, (layers, batch, hidden))
    found = (choose(n, batch, hidden, x, precision) for n in range(1, layers + 1))
    grids = [g for g in found if g is not None]
    most = len(grids)  # layers at once
    if not most:
        raise ValueError(
            f"weights of {hidden} units do not fit this GPU's chip with B = {batch} in {x.dtype}"
        )
    h_n, c_n = [], []
    for start in range(0, layers, most):
        run = prepare(x, h_0, c_0, weights, start, grids[min(most, layers - start) - 1])
        with torch.cuda.device_of(x):
            run.launch(precision)
        x = run.h[-1, 1:, :batch, :hidden].contiguous()  # (T, B, H), a copy only where there is padding
        h_n.append(run.h[:, steps, :batch, :hidden])
        c_n.append(run.c[:, :batch, :hidden].to(x.dtype))
    return x, (torch.cat(h_n), torch.cat(c_n))


@dataclass
class Run:
    """The arrays of one launch, all contiguous, B and H padded."""

    grid: Grid
    x: torch.Tensor  # (T, B, 4, H): the first layer's input product, with its biases
    w_ih: torch.Tensor  # (layers, 4, H, H)
    w_hh: torch.Tensor  # (layers, 4, H, H)
    bias: torch.Tensor  # (layers, 4, H)
    h: torch.Tensor  # (layers, T + 1, B, H): h_0, and what the kernel writes
    c: torch.Tensor  # (layers, B, H) float32: c_0, then c_n
    done: torch.Tensor  # (layers, groups) int32: steps finished, summed over the programs

    def launch(self, precision: str, first: int = 0, programs: int | None = None) -> None:
        """Runs the grid; or ``programs`` of it from number ``first`` on, when others run the rest."""
        g = self.grid
        kernel[(programs or g.programs,)](
            self.x, self.w_ih, self.w_hh, self.bias, self.h, self.c, self.done,
            first, self.x.shape[0], g.groups, g.tiles, g.groups * g.rows * g.hidden,
            STACKED=g.layers > 1, ROWS=g.rows, UNITS=g.units, HIDDEN=g.hidden, PRECISION=precision,
            num_warps=g.warps, num_stages=1, launch_cooperative_grid=True, enable_fp_fusion=True,
        )  # fmt: skip


def prepare(
    x: torch.Tensor, h_0: torch.Tensor, c_0: torch.Tensor, weights: Weights, start: int, grid: Grid
) -> Run:
    """The :class:`Run` of the layers from number ``start`` on; x is their input."""
    (steps, batch, _), hidden = x.shape, h_0.shape[2]
    rows, layers = grid.groups * grid.rows, slice(start, start + grid.layers)
    w_ih, _, b_ih, b_hh = weights.layers[start]
    x = F.linear(x, w_ih, b_ih + b_hh).view(steps, batch, 4, hidden)
    empty = x.new_empty if (rows, grid.hidden) == (batch, hidden) else x.new_zeros  # padding is read as well
    h = empty(grid.layers, steps + 1, rows, grid.hidden)
    h[:, 0, :batch, :hidden] = h_0[layers]
    c = x.new_zeros(grid.layers, rows, grid.hidden, dtype=torch.float32)
    c[:, :batch, :hidden] = c_0[layers]
    done = x.new_zeros(grid.layers, grid.groups, dtype=torch.int32)
    x = _pad(x, steps, rows, 4, grid.hidden)
    return Run(grid, x, weights.w_ih[layers], weights.w_hh[layers], weights.bias[layers], h, c, done)


def choose(layers: int, batch: int, hidden: int, x: torch.Tensor, precision: str) -> Grid | None:
    """The grid for so many layers at once; None if they do not fit."""
    if INTERPRETED:  # one program after another: none may wait for a later one, so one has a whole layer
        return grid(layers, batch, hidden, x.dtype, precision, 16, _padded(hidden))
    gpu = torch.cuda.get_device_properties(x.device)
    limits = gpu.multi_processor_count, gpu.shared_memory_per_block_optin
    return None if gpu.major < 8 else fit(layers, batch, hidden, x.dtype, precision, *limits)


def _padded(n):
    return max(16, 1 << (n - 1).bit_length())


def _pad(tensor, *shape):
    """``tensor`` in this shape, with zeros at the end of each axis; itself where it has it."""
    if tuple(tensor.shape) == shape:
        return tensor.contiguous()
    padded = tensor.new_zeros(shape)
    padded[tuple(map(slice, tensor.shape))] = tensor
    return padded


def _check(name, tensor, like, shape):
    check.shape(name, tuple(tensor.shape), shape)
    check.choice(f"{name}.dtype", tensor.dtype, (like.dtype,))
    check.choice(f"{name}.device", tensor.device, (like.device,))
    if torch.is_grad_enabled() and tensor.requires_grad:
        raise ValueError(f"{name} requires a gradient, and there is no backward: use torch.no_grad()")
