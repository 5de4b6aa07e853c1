"""ED's hidden layers as two CUDA kernels, for CuPy: one launch for a forward pass, one for an
update.

Letters: D hidden-to-hidden layers, K networks, B batch, C = 2W cells of a layer, n senders of the
bias. Arrays as in :mod:`ed_lib.ed.layout`, contiguous, all float32 or all float64: CuPy's on one
GPU, or NumPy's, for which ``cuda_on_cpu.RawKernel`` runs the same source on the CPU.
"""

import functools
from typing import Any

import numpy as np

from ed_lib.arrays import Array, dtype_name
from ed_lib.ed import layout
from ed_lib.ed.cuda_on_cpu import RawKernel
from ed_lib.ed.space import library

BLOCK = 512  # threads of a block at most, and so cells of a layer
ROWS = 4  # samples of a block of the forward kernel
SENDERS = 16  # senders whose weights a thread sums at a time

FORWARD = r"""
extern "C" __global__ void __launch_bounds__(BLOCK)
forward(real* states, const real* weight, const real* bias,
        int depth, int networks, int batch, int cells, real scale) {
    extern __shared__ real x[];      // (ROWS, C): what the layer below answers to ROWS samples
    real* sums = x + ROWS * cells;   // (parts, ROWS, C): what each part of the senders adds up to
    int first = blockIdx.x * ROWS, rows = min(ROWS, batch - first), k = blockIdx.y;
    // a thread adds up what some senders (its part) send to one receiver
    int o = threadIdx.x, part = threadIdx.y, parts = blockDim.y;
    int share = (cells + parts - 1) / parts, end = min(cells, (part + 1) * share);
    states += ((size_t)k * batch + first) * cells + o;
    weight += (size_t)k * cells * cells + o;
    bias += k * cells + o;
    for (int r = part; r < rows; r += parts) x[r * cells + o] = states[r * cells];
    for (int d = 0; d < depth; d++) {
        real u[ROWS] = {};
        __syncthreads();  // x is complete
        #pragma unroll SENDERS
        for (int i = part * share; i < end; i++)  // each weight is read once for all samples
            for (int r = 0; r < ROWS; r++) u[r] += x[r * cells + i] * weight[i * cells];
        for (int r = 0; r < ROWS; r++) sums[(part * ROWS + r) * cells + o] = u[r];
        __syncthreads();  // so are the sums, and x is no longer needed
        states += (size_t)networks * batch * cells;
        for (int r = part; r < rows; r += parts) {  // now a thread is a receiver of some samples
            real sum = *bias;
            for (int p = 0; p < parts; p++) sum += sums[(p * ROWS + r) * cells + o];
            states[r * cells] = x[r * cells + o] = 1 / (1 + exp(-scale * sum));
        }
        weight += (size_t)networks * cells * cells;  // on to the next layer
        bias += networks * cells;
    }
}
"""

UPDATE = r"""
extern "C" __global__ void __launch_bounds__(BLOCK)
update(real* weight, real* bias, const real* states, const real* gains,
       const real* bias_gains, int networks, int batch, int cells, int n_bias) {
    int layer = blockIdx.x, k = layer % networks, o = threadIdx.x;  // a thread is a receiver
    const real* x = states + (size_t)layer * batch * cells;     // (B, C): what the layer was sent
    const real* y = x + (size_t)networks * batch * cells + o;   // (B, C): what it answered
    real sign = o < cells / 2 ? 1 : -1;
    weight += (size_t)layer * cells * cells + o;
    bias += (size_t)layer * n_bias * cells + o;
    gains += k * 2 * batch;
    bias_gains += k * n_bias * batch;
    for (int first = threadIdx.y * SENDERS; first < cells; first += blockDim.y * SENDERS) {
        real dw[SENDERS] = {};  // of the weights from these senders
        for (int b = 0; b < batch; b++) {
            real slope = sign * y[b * cells] * (1 - y[b * cells]);
            // a type of sender each
            real from_0 = slope * gains[b], from_1 = slope * gains[batch + b];
            for (int s = 0, i = first; s < SENDERS; s++, i++)
                if (i < cells) dw[s] += x[b * cells + i] * (i < cells / 2 ? from_0 : from_1);
        }
        for (int s = 0; s < SENDERS && first + s < cells; s++) weight[(first + s) * cells] += dw[s];
    }
    for (int n = threadIdx.y; n < n_bias; n += blockDim.y)
        for (int b = 0; b < batch; b++)
            bias[n * cells] += bias_gains[n * batch + b] * sign * y[b * cells] * (1 - y[b * cells]);
}
"""


def forward(states: Array, weight: Array, bias: Array, u0: float) -> None:
    """As ``layout.forward``."""
    depth = len(weight)
    networks, batch, cells = states.shape[1:]
    sizes = map(np.int32, (depth, networks, batch, cells))
    arguments = states, weight, bias, *sizes, states.dtype.type(2 / u0)
    launch = kernel("forward", library(states), states.dtype)
    block = block_of(cells)
    _, parts = block
    # x, and the sums of each part of the senders: (ROWS, C) each
    shared = ROWS * (1 + parts) * cells * states.itemsize
    launch((-(-batch // ROWS), networks), block, arguments, shared_mem=shared)


def update(weight: Array, bias: Array, states: Array, gains: Array, bias_gains: Array) -> None:
    """As ``layout.update``."""
    depth = len(weight)
    if depth == 0:
        return  # CuPy would launch a block for no layers, too
    networks, batch, cells = states.shape[1:]
    # A kernel knows no strides, and gains may be views.
    contiguous = map(library(states).ascontiguousarray, (gains, bias_gains))
    sizes = map(np.int32, (networks, batch, cells, bias.shape[2]))
    arguments = weight, bias, states, *contiguous, *sizes
    launch = kernel("update", library(states), states.dtype)
    launch((depth * networks,), block_of(cells), arguments)


forward_all = functools.partial(layout.forward_all, forward=forward)
learn_all = functools.partial(layout.learn_all, update=update)


def block_of(cells: int) -> tuple[int, int]:
    """The threads of a block: a receiver each, and the senders in parts."""
    return cells, min(BLOCK // cells, -(-cells // SENDERS))


@functools.cache
def kernel(name: str, module: Any, dtype: Any) -> Any:
    """The kernel of this name as a ``RawKernel``, of CuPy or, for NumPy's arrays, on the CPU."""
    raw = RawKernel if module is np else module.RawKernel
    return raw({"forward": FORWARD, "update": UPDATE}[name], name, options(dtype_name(dtype)))


def options(dtype: str) -> tuple[str, ...]:
    """What the kernels' source leaves open, for the compiler."""
    real = {"float32": "float", "float64": "double"}[dtype]
    return f"-Dreal={real}", f"-DBLOCK={BLOCK}", f"-DROWS={ROWS}", f"-DSENDERS={SENDERS}"
