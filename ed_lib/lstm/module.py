"""An LSTM like ``torch.nn.LSTM`` that runs any rung of a ladder, forward and backward."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ed_lib import check
from ed_lib.lstm import gpu, ladder
from ed_lib.lstm.wavefront import batched_wavefront, streamed_wavefront

RUNGS = tuple(ladder.PUBLISHED)  # NVIDIA's, in order
BEYOND = ("batched_wavefront",)  # what no rung of NVIDIA's is: the wavefront in three launches a slot
ON_CPU = ("compiled_cell", "all_inputs", "one_call")  # of the ladder of ``cpu``, which leave gates summed
REFUSED = {"batch_first": False, "bias": True, "dropout": 0.0, "proj_size": 0}  # what from_torch can take


class LSTM(torch.nn.LSTM):
    """A ``torch.nn.LSTM`` that computes as ``rung`` says; its parameters are drawn as those.

    rung: one of RUNGS or, in one direction, of BEYOND or ON_CPU, which is for float32 and float64 on a CPU.
    combine: of how many steps the last two RUNGS compute the input products at once. bidirectional, device,
    dtype: as in ``torch.nn.LSTM``. All rungs compute the same numbers. Under autocast nothing is cast.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, rung: str = "combined_gemms",
        bidirectional: bool = False, combine: int = 2, device: Any = None, dtype: torch.dtype | None = None,
    ):  # fmt: skip
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        sizes = {name: check.count(name, size) for name, size in sizes.items()}
        check.choice("rung", rung, (*RUNGS, *BEYOND, *ON_CPU))
        if bidirectional and rung not in RUNGS:
            raise ValueError(f"bidirectional is {bidirectional}; wanted False for the rung {rung!r}")
        super().__init__(**sizes, bidirectional=bool(bidirectional), device=device, dtype=dtype)
        self.rung, self.combine = rung, check.count("combine", combine)

    @classmethod
    def from_torch(cls, module: torch.nn.LSTM, *, rung: str = "combined_gemms", combine: int = 2) -> "LSTM":
        """An LSTM with copies of the weights of a ``torch.nn.LSTM`` that has nothing that no rung has: no
        batch_first, dropout or projections, and biases.
        """
        check_module(module)
        like = module.all_weights[0][0]
        made = cls(
            module.input_size, module.hidden_size, module.num_layers, rung=rung, combine=combine,
            bidirectional=module.bidirectional, device=like.device, dtype=like.dtype,
        )  # fmt: skip
        made.load_state_dict(module.state_dict())
        return made

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, state: Sequence[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """x (T, B, I), state (h0, c0), each (L · D, B, H), or None for zeros → output (T, B, D · H) and
        (h_n, c_n), each (L · D, B, H).
        """
        weights = self.all_weights  # W_ih, W_hh and two biases of each layer and direction
        if self.rung in ON_CPU:
            check_on_cpu(weights[0][0])
        x, state = checked(x, state, weights[0][0], (len(weights), self.hidden_size))
        how = self.rung, 2 if self.bidirectional else 1, self.combine
        output, h, c = _Run.apply(how, x, *state, *(w.contiguous() for layer in weights for w in layer))
        return output, (h, c)


class _Run(torch.autograd.Function):
    """All layers by a rung, and the way back through them."""

    @staticmethod
    def forward(ctx, how, x, h0, c0, *weights):
        groups = [weights[n : n + 4] for n in range(0, len(weights), 4)]
        rung, directions, combine = how
        output, layers = run(rung, x, h0, c0, groups, directions, combine)
        ctx.directions, ctx.summed = directions, rung in ON_CPU
        ctx.save_for_backward(*(tensor for kept in layers for tensor in kept))
        ends = (-1 if n % directions == 0 else 0 for n in range(len(layers)))
        states = [(kept.hidden[end], kept.cells[end]) for kept, end in zip(layers, ends, strict=True)]
        return output, *map(torch.stack, zip(*states, strict=True))  # (T, B, D · H), (L · D, B, H) twice

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh, dc):
        size, saved = len(ladder.Kept._fields), ctx.saved_tensors
        layers = [ladder.Kept(*saved[n : n + size]) for n in range(0, len(saved), size)]
        if ctx.summed:
            layers = [kept._replace(gates=activated(kept.gates)) for kept in layers]
        grads, starts = [], []
        for level in reversed(range(0, len(layers), ctx.directions)):
            dx = 0
            for d in reversed(range(ctx.directions)):
                n, part = level + d, dy.chunk(ctx.directions, 2)[d]  # (T, B, H)
                below, *found, dh_0, dc_0 = layer_backward(layers[n], d == 1, part, dh[n], dc[n])
                dx = dx + below
                grads = [*found, *grads]
                starts.insert(0, (dh_0, dc_0))
            dy = dx  # (T, B, D · H) of the layer below, or (T, B, I)
        dh_0, dc_0 = map(torch.stack, zip(*starts, strict=True))
        return None, dy, dh_0, dc_0, *grads


def run(
    rung: str, x: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor, weights: Sequence[ladder.Weights],
    directions: int = 1, combine: int = 2,
) -> tuple[torch.Tensor, list[ladder.Kept]]:  # fmt: skip
    """Runs all layers by a rung: x (T, B, I), h0, c0 (L · D, B, H), weights (w_ih, w_hh, b_ih, b_hh) for each
    layer and direction → output (T, B, D · H), and ``ladder.Kept`` of each layer and direction.
    """
    if rung == "batched_wavefront":
        return batched_wavefront(x, h0, c0, weights)
    rungs: Any = ladder
    if rung in ON_CPU:
        from ed_lib.lstm import cpu  # with Numba, which not every machine with a GPU has

        rungs = cpu
    options = {"combine": combine} if rung == "combined_inputs" else {}
    levels: list[list[ladder.Layer]] = []
    for first in range(0, len(weights), directions):
        output = x.new_empty(*x.shape[:2], directions * h0.shape[2])  # (T, B, D · H)
        parts = enumerate(output.chunk(directions, 2), first)
        levels.append([ladder.Layer(x, *weights[n], h0[n], c0[n], part, n > first) for n, part in parts])
        x = output
        for layer in levels[-1] if rung != "wavefront" else ():
            getattr(rungs, rung)(layer, **options)
    if rung == "wavefront":
        streamed_wavefront(levels, combine)
    return x, [layer.kept for level in levels for layer in level]


def layer_backward(
    kept: ladder.Kept, reverse: bool, dy: torch.Tensor, dh: torch.Tensor, dc: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """One layer in one direction on the way back: dy (T, B, H), dh and dc (B, H), the gradients of the output
    and of the last state → those of x, w_ih, w_hh, b_ih, b_hh and of the first state. All weights' gradients
    wait for the end, and are one product each.
    """
    dgates, dh, dc = chain_backward(kept, reverse, dy, dh, dc)
    flat = dgates.flatten(0, 1)  # (T · B, 4H)
    h = (kept.hidden[1:] if reverse else kept.hidden[:-1]).flatten(0, 1)  # (T · B, H)
    bias = flat.sum(0)  # (4H,), of both biases
    dx = (flat @ kept.w_ih).view_as(kept.x)
    return dx, flat.t() @ kept.x.flatten(0, 1), flat.t() @ h, bias, bias.clone(), dh, dc


def activated(sums: torch.Tensor) -> torch.Tensor:
    """Gates as they are kept, i, f, g, o, from their sums: (…, 4H) each."""
    i, f, g, o = sums.chunk(4, -1)
    return torch.cat([i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()], -1)


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
        gpu.cell_backward(kept.gates[t], *cells, dh, dc, dgates[t])
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


def check_threads(threads: int) -> int:
    """``threads`` as an int; ValueError for more than Numba has, which would wait for each other in turns."""
    from numba import get_num_threads

    if check.count("threads", threads) > get_num_threads():
        raise ValueError(f"threads is {threads}; wanted at most {get_num_threads()}, as many as Numba has")
    return int(threads)


def checked(x: torch.Tensor, state: Any, w_ih: torch.Tensor, sizes: tuple[int, int]) -> tuple:
    """x (T, B, I), contiguous, and the state, once it is known that they fit: to W_ih, and (L · D, H)."""
    if state is not None and (not isinstance(state, tuple | list) or len(state) != 2):
        raise TypeError(f"state is {type(state).__name__}; wanted the pair (h0, c0), or None")
    for name, tensor in zip(("x", "h0", "c0"), (x, *(state or ())), strict=False):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; wanted a torch.Tensor")
        wanted = ("T", "B", w_ih.shape[1]) if name == "x" else (sizes[0], x.shape[1], sizes[1])
        check.shape(name, tuple(tensor.shape), wanted)
        check.choice(f"{name}.dtype", tensor.dtype, (w_ih.dtype,))
        check.choice(f"{name}.device", tensor.device, (w_ih.device,))
    shape = sizes[0], x.shape[1], sizes[1]
    return x.contiguous(), state or (torch.zeros(shape, dtype=x.dtype, device=x.device),) * 2
