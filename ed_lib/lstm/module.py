"""An LSTM like ``torch.nn.LSTM`` that runs any rung of the ladder, forward and backward."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ed_lib import check
from ed_lib.lstm import kernels, ladder
from ed_lib.lstm.wavefront import batched_wavefront, streamed_wavefront

ONE_LAYER = {
    "baseline": ladder.baseline,
    "combined_gemms": ladder.combined_gemms,
    "streamed_gemms": ladder.streamed_gemms,
    "fused_pointwise": ladder.fused_pointwise,
    "pretransposed": ladder.pretransposed,
    "combined_inputs": ladder.combined_inputs,
}
RUNGS = (*ONE_LAYER, "wavefront")
BEYOND = ("batched_wavefront",)  # what no rung of NVIDIA's is: the wavefront in three launches a slot
ON_CPU = ("compiled_cell", "all_inputs", "one_call")  # of a ladder for a CPU: see cpu_ladder
REFUSED = {"batch_first": False, "bias": True, "dropout": 0.0, "proj_size": 0}  # what from_torch can take


class LSTM(torch.nn.Module):
    """An LSTM with the parameters of ``torch.nn.LSTM``, by the same names, that computes as ``rung`` says.

    rung: one of RUNGS or, in one direction, of BEYOND or ON_CPU, which is for float32 and float64 on a CPU.
    combine: of how many steps the last two RUNGS compute the input products at once. threads: of the rung
    "one_call". bidirectional, device, dtype: as in ``torch.nn.LSTM``. All rungs compute the same numbers.
    Under autocast give it what its weights are: nothing is cast.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, rung: str = "combined_gemms",
        bidirectional: bool = False, combine: int = 2, threads: int = 1, device: Any = None,
        dtype: torch.dtype | None = None,
    ):  # fmt: skip
        super().__init__()
        self.input_size = check.count("input_size", input_size)
        self.hidden_size = check.count("hidden_size", hidden_size)
        self.num_layers = check.count("num_layers", num_layers)
        self.combine = check.count("combine", combine)
        check.choice("rung", rung, (*RUNGS, *BEYOND, *ON_CPU))
        if bidirectional and rung not in RUNGS:
            raise ValueError(f"bidirectional is {bidirectional}; wanted False for the rung {rung!r}")
        self.threads = check_threads(threads) if rung in ON_CPU else threads
        self.rung, self.bidirectional = rung, bool(bidirectional)
        self.directions = 2 if bidirectional else 1
        self.names = [  # of the parameters, a list for each layer and direction
            [f"{what}_l{layer}{end}" for what in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            for layer in range(num_layers)
            for end in ("", "_reverse")[: self.directions]
        ]
        for n, (w_ih, w_hh, b_ih, b_hh) in enumerate(self.names):
            below = input_size if n < self.directions else self.directions * hidden_size
            shapes: dict[str, tuple] = {w_ih: (4 * hidden_size, below), w_hh: (4 * hidden_size, hidden_size)}
            shapes |= {b_ih: (4 * hidden_size,), b_hh: (4 * hidden_size,)}
            for name, shape in shapes.items():
                setattr(self, name, torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        bound = 1 / math.sqrt(hidden_size)
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -bound, bound)

    @classmethod
    def from_torch(
        cls, module: torch.nn.LSTM, *, rung: str = "combined_gemms", combine: int = 2, threads: int = 1
    ) -> "LSTM":
        """An LSTM with copies of the weights of a ``torch.nn.LSTM`` that has nothing that no rung has: no
        batch_first, dropout or projections, and biases.
        """
        check_module(module)
        like: Any = module.weight_ih_l0
        made = cls(
            module.input_size, module.hidden_size, module.num_layers, rung=rung, combine=combine,
            threads=threads, bidirectional=module.bidirectional, device=like.device,
            dtype=like.dtype,
        )  # fmt: skip
        made.load_state_dict(module.state_dict())
        return made

    def forward(self, x: torch.Tensor, state: Sequence[torch.Tensor] | None = None) -> tuple:
        """x (T, B, I), state (h0, c0), each (L · D, B, H), or None for zeros → output (T, B, D · H) and
        (h_n, c_n), each (L · D, B, H).
        """
        x, state = self._check(x, state)
        weights = [getattr(self, name).contiguous() for names in self.names for name in names]
        how = self.rung, self.directions, self.combine, self.threads
        output, h, c = _Run.apply(how, x, *state, *weights)
        return output, (h, c)

    def _check(self, x, state):
        like = self.weight_ih_l0
        if self.rung in ON_CPU:
            check_on_cpu(like)
        return checked(x, state, like, (len(self.names), self.hidden_size))


class _Run(torch.autograd.Function):
    """All layers by a rung, and the way back through them."""

    @staticmethod
    def forward(ctx, how, x, h0, c0, *weights):
        groups = [weights[n : n + 4] for n in range(0, len(weights), 4)]
        rung, directions, combine, threads = how
        output, layers = run(rung, x, h0, c0, groups, directions, combine, threads)
        ctx.directions, ctx.threads = directions, threads if rung == "one_call" else None
        ctx.save_for_backward(*(tensor for kept in layers for tensor in kept))
        ends = [-1 if n % directions == 0 else 0 for n in range(len(layers))]
        h = torch.stack([kept.hidden[end] for kept, end in zip(layers, ends, strict=True)])
        c = torch.stack([kept.cells[end] for kept, end in zip(layers, ends, strict=True)])
        return output, h, c  # (T, B, D · H), (L · D, B, H) twice

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh, dc):
        size, saved = len(ladder.Kept._fields), ctx.saved_tensors
        layers = [ladder.Kept(*saved[n : n + size]) for n in range(0, len(saved), size)]
        grads, starts = [], []
        for level in reversed(range(0, len(layers), ctx.directions)):
            dx = 0
            for d in reversed(range(ctx.directions)):
                n, part = level + d, dy.chunk(ctx.directions, 2)[d]  # (T, B, H)
                ends = layers[n], d == 1, part, dh[n], dc[n]
                below, *found, dh_0, dc_0 = layer_backward(*ends, threads=ctx.threads)
                dx = dx + below
                grads = [*found, *grads]
                starts.insert(0, (dh_0, dc_0))
            dy = dx  # (T, B, D · H) of the layer below, or (T, B, I)
        dh_0, dc_0 = map(torch.stack, zip(*starts, strict=True))
        return None, dy, dh_0, dc_0, *grads


def run(
    rung: str, x: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor, weights: Sequence[ladder.Weights],
    directions: int = 1, combine: int = 2, threads: int = 1,
) -> tuple[torch.Tensor, list[ladder.Kept]]:  # fmt: skip
    """Runs all layers by a rung → output (T, B, D · H), and ``ladder.Kept`` of each layer and direction.

    weights: (w_ih, w_hh, b_ih, b_hh) for each layer and direction, as in :class:`LSTM`; h0, c0 (L · D, B, H).
    """
    if rung == "batched_wavefront":
        return batched_wavefront(x, h0, c0, weights)
    levels: list[list[ladder.Layer]] = []
    size = h0.shape[2]
    for first in range(0, len(weights), directions):
        output = x.new_empty(*x.shape[:2], directions * size)  # (T, B, D · H)
        levels.append(
            [
                ladder.Layer(x, *weights[first + d], h0[first + d], c0[first + d], part, reverse=d == 1)
                for d, part in enumerate(output.chunk(directions, 2))
            ]
        )
        options = {"combined_inputs": {"combine": combine}, "one_call": {"threads": threads}}.get(rung, {})
        for layer in levels[-1]:
            if rung in ONE_LAYER:
                ONE_LAYER[rung](layer, **options)
            elif rung in ON_CPU:
                from ed_lib.lstm import cpu_ladder  # with Numba, which not every machine with a GPU has

                getattr(cpu_ladder, rung)(layer, **options)
        x = output
    if rung == "wavefront":
        streamed_wavefront(levels, combine)
    return x, [layer.kept for level in levels for layer in level]


def layer_backward(
    kept: ladder.Kept, reverse: bool, dy: torch.Tensor, dh: torch.Tensor, dc: torch.Tensor,
    threads: int | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """One layer in one direction on the way back: backpropagation through time.

    kept: the layer's ``ladder.Kept``; dy (T, B, H), dh and dc (B, H): the gradients of
    the output and of the last state → those of x, w_ih, w_hh, b_ih, b_hh and of the
    first state. All weights' gradients wait for the end, and are one product each.
    threads: of the compiled chain; None for the loop below.
    """
    if threads is None:
        dgates, dh, dc = chain_backward(kept, reverse, dy, dh, dc)
    else:
        from ed_lib.lstm import cpu_ladder

        dgates, dh, dc = cpu_ladder.chain_backward(kept, dy, dh, dc, threads)
    flat = dgates.flatten(0, 1)  # (T · B, 4H)
    h = (kept.hidden[1:] if reverse else kept.hidden[:-1]).flatten(0, 1)  # (T · B, H)
    bias = flat.sum(0)  # (4H,), of both biases
    dx = (flat @ kept.w_ih).view_as(kept.x)
    return dx, flat.t() @ kept.x.flatten(0, 1), flat.t() @ h, bias, bias.clone(), dh, dc


def chain_backward(
    kept: ladder.Kept, reverse: bool, dy: torch.Tensor, dh: torch.Tensor, dc: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What has to wait, from the last step to the first → the gradients of W_ih x + b,
    (T, B, 4H), and of the first state.
    """
    dgates = torch.empty_like(kept.gates)  # (T, B, 4H)
    dh, dc = (d.clone(memory_format=torch.contiguous_format) for d in (dh, dc))
    for t, before, after in reversed(ladder.steps(len(kept.x), reverse)):
        dh.add_(dy[t])
        cells = kept.cells[before], kept.cells[after]
        kernels.cell_backward(kept.gates[t], *cells, dh, dc, dgates[t])
        torch.mm(dgates[t], kept.w_hh, out=dh)  # (B, 4H) (4H, H) → (B, H)
    return dgates, dh, dc


def check_module(module: torch.nn.LSTM) -> None:
    """TypeError unless ``module`` is a torch.nn.LSTM, ValueError if it has what no rung has."""
    if not isinstance(module, torch.nn.LSTM):
        raise TypeError(f"module is a {type(module).__name__}; wanted a torch.nn.LSTM")
    for name, wanted in REFUSED.items():
        if (found := getattr(module, name)) != wanted:
            raise ValueError(f"module has {name}={found}; wanted {name}={wanted}")


def check_on_cpu(weight: torch.Tensor) -> None:
    """ValueError unless a weight is one that compiled code takes."""
    check.choice("the weights' device", weight.device.type, ("cpu",))
    check.choice("the weights' dtype", weight.dtype, (torch.float32, torch.float64))


def checked(x: torch.Tensor, state: Any, w_ih: torch.Tensor, sizes: tuple[int, int]) -> tuple:
    """x (T, B, I) and the state, contiguous, once it is known that they fit: to W_ih, and (L · D, H)."""
    check_tensor("x", x, w_ih, ("T", "B", w_ih.shape[1]))
    shape = sizes[0], x.shape[1], sizes[1]
    if state is None:
        zeros = torch.zeros(shape, dtype=x.dtype, device=x.device)
        return x.contiguous(), (zeros, zeros)
    if not isinstance(state, tuple | list) or len(state) != 2:
        raise TypeError(f"state is {type(state).__name__}; wanted the pair (h0, c0), or None")
    for name, tensor in zip(("h0", "c0"), state, strict=True):
        check_tensor(name, tensor, w_ih, shape)
    return x.contiguous(), state


def check_threads(threads: int) -> int:
    """``threads`` as an int; ValueError for more than Numba has, which would wait for each other in turns."""
    from numba import get_num_threads

    if check.count("threads", threads) > get_num_threads():
        raise ValueError(f"threads is {threads}; wanted at most {get_num_threads()}, as many as Numba has")
    return int(threads)


def check_tensor(name: str, tensor: torch.Tensor, like: torch.Tensor, shape: tuple) -> None:
    """TypeError or ValueError unless a tensor has this shape, and the dtype and device of ``like``."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; wanted a torch.Tensor")
    check.shape(name, tuple(tensor.shape), shape)
    check.choice(f"{name}.dtype", tensor.dtype, (like.dtype,))
    check.choice(f"{name}.device", tensor.device, (like.device,))
