"""An LSTM like ``torch.nn.LSTM`` that runs any rung of a ladder, forward and backward.

Letters: T time steps, B batch, I inputs, H hidden, L layers. The gates i, f, g, o come from a =
W_ih x + W_hh h + b; dy, dh, dc … are the gradients of y, h, c … A layer's weights are w_ih (4H, I),
w_hh (4H, H), and two biases (4H,).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ed_lib import check
from ed_lib.lstm import ladder
from ed_lib.lstm.doors import check_input, check_module

RUNGS = tuple(ladder.PUBLISHED)  # NVIDIA's, in order
PARAMETERS = 4  # of a layer


class LSTM(torch.nn.LSTM):
    """A ``torch.nn.LSTM`` that computes as ``rung`` says; its parameters are drawn as those.

    rung: one of RUNGS. combine: of how many steps the last two compute the input products at once.
    device, dtype: as in ``torch.nn.LSTM``. All rungs compute the same numbers. Under autocast
    nothing is cast.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        rung: str = "combined_gemms",
        combine: int = 2,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        input_size = check.count("input_size", input_size)
        hidden_size = check.count("hidden_size", hidden_size)
        num_layers = check.count("num_layers", num_layers)
        combine = check.count("combine", combine)
        check.choice("rung", rung, RUNGS)
        super().__init__(input_size, hidden_size, num_layers, device=device, dtype=dtype)
        self.rung = rung
        self.combine = combine

    @classmethod
    def from_torch(
        cls, module: torch.nn.LSTM, *, rung: str = "combined_gemms", combine: int = 2
    ) -> "LSTM":
        """An LSTM with copies of the weights of a ``torch.nn.LSTM`` that has nothing that no rung
        has: no batch_first, dropout, second direction or projections, and biases.
        """
        check_module(module)
        like: Any = module.all_weights[0][0]
        sizes = (module.input_size, module.hidden_size, module.num_layers)
        made = cls(*sizes, rung=rung, combine=combine, device=like.device, dtype=like.dtype)
        made.load_state_dict(module.state_dict())
        return made

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, state: Sequence[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """x (T, B, I), state (h0, c0), (L, B, H) each, or None for zeros → output (T, B, H), (h_n,
        c_n).
        """
        weights = self.all_weights  # w_ih, w_hh and two biases of each layer
        x, state = check_input(x, state, weights[0][0], (len(weights), self.hidden_size))
        # A kernel reads its arrays one number after the other.
        flat = (weight.contiguous() for layer in weights for weight in layer)
        output, h, c = _Run.apply((self.rung, self.combine), x, *state, *flat)
        return output, (h, c)


class _Run(torch.autograd.Function):
    """All layers by a rung, and the way back through them."""

    @staticmethod
    def forward(ctx, how, x, h0, c0, *weights):
        # autograd takes tensors one by one, and gives them back so.
        groups = [weights[n : n + PARAMETERS] for n in range(0, len(weights), PARAMETERS)]
        layers = run(*how, x, h0, c0, groups)
        ctx.save_for_backward(*(tensor for layer in layers for tensor in layer.kept))
        h = torch.stack([layer.hidden[-1] for layer in layers])  # (L, B, H)
        c = torch.stack([layer.cells[-1] for layer in layers])  # (L, B, H)
        return layers[-1].output, h, c

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh, dc):
        size = len(ladder.Kept._fields)
        dh0: list = []  # (B, H) each, from the lowest layer
        dc0: list = []
        of_weights: list = []
        for n in reversed(range(len(dh))):
            kept = ladder.Kept(*ctx.saved_tensors[n * size : (n + 1) * size])
            # The gradient of a layer's input is that of the output of the layer below.
            dy, *found, of_h, of_c = layer_backward(kept, dy, dh[n], dc[n])
            of_weights = found + of_weights
            dh0.insert(0, of_h)
            dc0.insert(0, of_c)
        return None, dy, torch.stack(dh0), torch.stack(dc0), *of_weights


def run(
    rung: str, combine: int, x: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor,
    weights: Sequence[ladder.Weights],
) -> list[ladder.Layer]:  # fmt: skip
    """Runs all layers by a rung: x (T, B, I), h0, c0 (L, B, H), and each layer's (w_ih, w_hh, b_ih,
    b_hh).
    """
    layers: list[ladder.Layer] = []
    for n, group in enumerate(weights):
        layer = ladder.Layer(x, *group, h0[n], c0[n])
        layers.append(layer)
        # The layer above takes this one's output; a wavefront fills it later.
        x = layer.output
        if rung == "combined_inputs":
            ladder.combined_inputs(layer, combine)
        elif rung != "wavefront":
            getattr(ladder, rung)(layer)
    if rung == "wavefront":
        ladder.wavefront(layers, combine)
    return layers


def layer_backward(
    kept: ladder.Kept, dy: torch.Tensor, dh: torch.Tensor, dc: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """One layer on the way back: dy (T, B, H), dh and dc (B, H), the gradients of the output and of
    the last state → those of x, w_ih, w_hh, b_ih, b_hh and of the first state. All weights'
    gradients wait for the end, and are one product each.
    """
    dgates, dh, dc = chain_backward(kept, dy, dh, dc)
    da = dgates.flatten(0, 1)  # (T · B, 4H)
    x = kept.x.flatten(0, 1)  # (T · B, I)
    h = kept.hidden[:-1].flatten(0, 1)  # (T · B, H), before each step
    # (T · B, 4H) (4H, I) → (T · B, I)
    dx = (da @ kept.w_ih).view_as(kept.x)
    # (4H, T · B) (T · B, I) → (4H, I), and with H columns
    dw_hh = da.t() @ h
    dw_ih = da.t() @ x
    # Both biases are added to a, and have the same gradient; each parameter needs its own tensor.
    db = da.sum(0)  # (4H,)
    return dx, dw_ih, dw_hh, db, db.clone(), dh, dc


def chain_backward(
    kept: ladder.Kept, dy: torch.Tensor, dh: torch.Tensor, dc: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What has to wait, from the last step to the first → the gradients of W_ih x + b,
    (T, B, 4H), and of the first state.
    """
    dgates = torch.empty_like(kept.gates)  # (T, B, 4H)
    # Copies, since autograd's own may not be written to.
    dh = dh.clone(memory_format=torch.contiguous_format)  # (B, H)
    dc = dc.clone(memory_format=torch.contiguous_format)  # (B, H)
    for t in reversed(range(len(kept.x))):
        # h of this step went into the next step, whose share dh holds, and into the output.
        dh.add_(dy[t])
        cell_backward(kept.gates[t], kept.cells[t], kept.cells[t + 1], dh, dc, dgates[t])
        # (B, 4H) (4H, H) → (B, H), of h before the step
        torch.mm(dgates[t], kept.w_hh, out=dh)
    return dgates, dh, dc


def cell_backward(
    gates: torch.Tensor, c_before: torch.Tensor, c_after: torch.Tensor,
    dh: torch.Tensor, dc: torch.Tensor, dgates: torch.Tensor,
) -> None:  # fmt: skip
    """The pointwise work of a step backwards; σ' = σ(1 − σ) and tanh' = 1 − tanh².

    gates (B, 4H) activated; c_before, c_after, dh (B, H) are read. dc (B, H): the gradient of
    c_after that came from later steps before, that of c_before after. dgates (B, 4H) is written:
    the gradient of a.
    """
    i, f, g, o = gates.chunk(4, 1)  # (B, H) each
    di, df, dg, do = dgates.chunk(4, 1)
    tanh_c = c_after.tanh()
    # h = o tanh(c): c gets a share through h, beside that from the next step.
    dc.addcmul_(dh * o, 1 - tanh_c * tanh_c)
    torch.mul(dh * tanh_c, o * (1 - o), out=do)
    # c = f c_before + i g
    torch.mul(dc * g, i * (1 - i), out=di)
    torch.mul(dc * i, 1 - g * g, out=dg)
    torch.mul(dc * c_before, f * (1 - f), out=df)
    dc.mul_(f)
