"""An LSTM that answers and is not trained: its weights are packed once, and each thread keeps its own."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ed_lib import check
from ed_lib.arrays import one_blas_thread
from ed_lib.lstm import cpu_kernels, cpu_ladder, packing
from ed_lib.lstm.module import check_module, check_on_cpu, check_threads, checked

SPLITS = ("hidden", "layers", "in turns")


class Frozen:
    """A ``torch.nn.LSTM`` with the weights that it has now, for a CPU, without gradients.

    threads: how many share the work. split: "hidden" gives each of them a part of every layer's hidden
    numbers, layer after layer; "layers" gives each its own layers, along the wavefront; "in turns" is
    "hidden" with the parts handed on from thread to thread after each step, to see what keeping them is
    worth. bits: those that a number of W_hh is held in, 32, 16 (bfloat16) or 8 (int8, with a scale for each
    row), computed in float32.

    ValueError or TypeError for what is no plain ``torch.nn.LSTM`` in float32 or float64 on a CPU, for more
    threads than Numba has, and for fewer bits with float64 or with the split "layers".
    """

    def __init__(self, module: torch.nn.LSTM, *, threads: int = 1, split: str = "hidden", bits: int = 32):
        check_module(module)
        self.w_ih, self.threads = module.all_weights[0][0].detach(), check_threads(threads)
        check_on_cpu(self.w_ih)
        check.choice("module.bidirectional", module.bidirectional, (False,))
        check.choice("split", split, SPLITS)
        whole = split == "layers" or self.w_ih.dtype == torch.float64
        check.choice("bits", bits, packing.BITS[:1] if whole else packing.BITS)
        self.split, self.sizes = split, (module.num_layers, module.hidden_size)
        parts = 1 if split == "layers" else threads
        self.layers = [packing.prepare(weights, parts, bits) for weights in module.all_weights]
        if split == "layers":
            self.stack = packing.stack(self.layers)

    def __call__(self, x: torch.Tensor, state: Sequence[torch.Tensor] | None = None) -> tuple:
        """x (T, B, I), state (h0, c0), each (L, B, H), or None for zeros → output (T, B, H), (h_n, c_n)."""
        x, state = checked(x, state, self.w_ih, self.sizes)
        (steps, batch, _), (layers, size) = x.shape, self.sizes
        below = x.detach().numpy()
        gates = np.empty((layers, steps, batch, 4 * size), below.dtype)
        hidden, cells = np.empty((2, layers, steps + 1, batch, size), below.dtype)
        hidden[:, 0], cells[:, 0] = (tensor.detach().numpy() for tensor in state)
        if self.split == "layers":
            self.side_by_side(below, gates, hidden, cells)
        else:
            for n, layer in enumerate(self.layers):
                cpu_ladder.run(layer, below, gates[n], hidden[n], cells[n], int(self.split == "in turns"))
                below = hidden[n, 1:]
        output, *ends = hidden[-1, 1:], hidden[:, -1].copy(), cells[:, -1].copy()
        return torch.from_numpy(output), tuple(map(torch.from_numpy, ends))

    def side_by_side(self, x: np.ndarray, gates: np.ndarray, hidden: np.ndarray, cells: np.ndarray) -> None:
        """All layers along the wavefront: x (T, B, I); the others as in ``run``, with the layers first."""
        counters = np.zeros((self.threads + len(gates), cpu_kernels.LINE), np.int64)
        w_ih, bias, *rest = self.stack
        arrays = x.reshape(-1, x.shape[-1]), w_ih, bias, gates, hidden, cells, *rest
        with one_blas_thread():
            cpu_ladder.arrived(cpu_kernels.wavefront(*arrays, counters, self.threads))


def by_onednn(module: torch.nn.LSTM) -> Callable:
    """A ``torch.nn.LSTM`` of one layer with the weights that it has now, as a function without gradients: of
    x (T, B, I) → what ``module(x)`` is.

    oneDNN computes both. ``nn.LSTM`` lets it pack its weights anew in each call; this packs them at the first
    call of a shape, as PyTorch's compiler does where it may freeze them (the operators are the compiler's).
    ValueError or TypeError as :class:`Frozen`, for other than float32, and for several layers.
    """
    check_module(module)
    w_ih, w_hh, *biases = (weight.detach() for weight in module.all_weights[0])
    check_on_cpu(w_ih)
    check.choice("the weights' dtype", w_ih.dtype, (torch.float32,))
    check.choice("module.bidirectional", module.bidirectional, (False,))
    check.choice("module.num_layers", module.num_layers, (1,))
    size = module.hidden_size

    @functools.cache
    def packed(shape):
        # of one direction, with biases, sequence first
        return torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight(w_ih, w_hh, size, False, True, False, shape)

    def call(x):
        x, (h, c) = checked(x, None, w_ih, (1, size))
        how = False, [], 2, size, 1, True, False, False, False  # 2: an LSTM
        output, h, c, _ = torch.ops.aten.mkldnn_rnn_layer(x, *packed(x.shape), *biases, h[0], c[0], *how)
        return output, (h.view(1, -1, size), c.view(1, -1, size))

    return call
