"""Rungs of a ladder for a CPU, where a launch is a call: fewer of them, and at last one for all steps.

They take a ``ladder.Layer`` as the rungs of NVIDIA's ladder do; in one direction, in float32 or float64.
Letters: T time steps, B batch, I inputs, H hidden, p threads.
"""

import numpy as np
import torch

from ed_lib.arrays import one_blas_thread
from ed_lib.lstm import cpu_cell, cpu_kernels, packing
from ed_lib.lstm.ladder import Kept, Layer


def compiled_cell(layer: Layer) -> None:
    """All pointwise work of a step in one compiled call; its two products are PyTorch's."""
    bias = layer.b_ih + layer.b_hh
    for t in range(len(layer.x)):
        # (B, I) (I, 4H) → (B, 4H)
        torch.addmm(bias, layer.x[t], layer.w_ih.t(), out=layer.gates[t])
        step(layer, t)
    layer.output.copy_(layer.hidden[1:])


def all_inputs(layer: Layer) -> None:
    """One input product for all steps, since it waits for none of them."""
    # (T · B, I) (I, 4H) → (T · B, 4H)
    x, gates = layer.x.flatten(0, 1), layer.gates.flatten(0, 1)
    torch.addmm(layer.b_ih + layer.b_hh, x, layer.w_ih.t(), out=gates)
    for t in range(len(layer.x)):
        step(layer, t)
    layer.output.copy_(layer.hidden[1:])


def step(layer: Layer, t: int) -> None:
    """The recurrent product of a step, and the rest in one compiled call."""
    # (B, H) (H, 4H) → (B, 4H)
    torch.mm(layer.hidden[t], layer.w_hh.t(), out=layer.recurrent)
    pointwise(layer, t)


def pointwise(layer: Layer, t: int) -> None:
    """The pointwise work of a step, biases apart, in one compiled call."""
    arrays = layer.gates[t], layer.recurrent, layer.cells[t], layer.cells[t + 1], layer.hidden[t + 1]
    cpu_cell.whole_cell(*(array.numpy() for array in arrays))


def one_call(layer: Layer, threads: int = 1) -> None:
    """The loop over the steps compiled too: one call for the whole sequence, on so many threads."""
    packed = packing.prepare((layer.w_ih, layer.w_hh, layer.b_ih, layer.b_hh), threads)
    x, gates, hidden, cells = (a.numpy() for a in (layer.x, layer.gates, layer.hidden, layer.cells))
    run(packed, x, gates, hidden, cells)
    layer.output.copy_(layer.hidden[1:])


def run(
    packed: packing.Packed, x: np.ndarray, gates: np.ndarray, hidden: np.ndarray, cells: np.ndarray,
    turn: int = 0,
) -> None:  # fmt: skip
    """All steps of a layer: x (T, B, I); gates (T, B, 4H) is written, and of hidden and cells (T + 1, B, H)
    what follows [0]. turn: as in ``cpu_kernels.forward``.
    """
    counters = np.zeros((len(packed.w_hh), cpu_kernels.LINE), np.int64)
    x = x.reshape(-1, x.shape[-1])  # (T · B, I)
    forward = cpu_kernels.forward if len(counters) > 1 else cpu_kernels.forward_alone
    with one_blas_thread():
        arrived(forward(x, packed.w_ih, packed.bias, gates, hidden, cells, *packed[2:], counters, turn))


def chain_backward(
    kept: Kept, dy: torch.Tensor, dh: torch.Tensor, dc: torch.Tensor, threads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What ``module.chain_backward`` does, in one call: dy (T, B, H), dh and dc (B, H) → the gradients of
    W_ih x + b, (T, B, 4H), and of the first state.
    """
    dgates = torch.empty_like(kept.gates)
    dh, dc = (gradient.clone(memory_format=torch.contiguous_format) for gradient in (dh, dc))
    arrays = (kept.gates, kept.cells, dy.contiguous(), dh, dc, dgates)
    w = packing.pack_back(kept.w_hh.numpy(), threads)
    counters = np.zeros((threads, cpu_kernels.LINE), np.int64)
    with one_blas_thread():
        arrived(cpu_kernels.backward(*(array.numpy() for array in arrays), w, counters))
    return dgates, dh, dc


def arrived(all_did: bool) -> None:
    """RuntimeError if a thread waited in vain for another."""
    if not all_did:
        raise RuntimeError("a thread did not come to the end of a step; the result is not whole")
