"""One ED network for several classes: hidden cell i is taught by class i mod C ("modulo routing").

Source: Yamada and others, "Diffusing Blame" (arXiv 2606.31700). Here for the rules and cells of this book.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from ed_lib import check
from ed_lib.ed import rules
from ed_lib.ed.network import EDNetwork


class RoutedNetwork:
    """Hidden layers of ``width`` pairs, shared by C = ``n_outputs`` output cells that all read all of them.

    A weight from cell i to cell o learns as in EDNetwork, from the error of class o mod C. PyTorch, free
    biases; it starts as an EDNetwork of these options does, each output with weights of its own. ``walls``:
    the weights from a cell to the outputs of other classes start at zero (without hidden-to-hidden layers
    these are then C separate networks, until the weights grow). ``centred``: in the hidden layers a class's
    error is taken relative to its mean over the batch, as in the paper. To be trained by
    :class:`~ed_lib.ed.learner.Learner` with the method "ed".
    """

    def __init__(self, n_inputs: int, width: int, depth: int, n_outputs: int, *, rule: str = "signed",
                 init: str = "fan_in", u0: float = 0.4, seed: int = 0, walls: bool = False,
                 centred: bool = False, device: str = "cpu", dtype: str = "float32"):  # fmt: skip
        options: dict[str, Any] = dict(rule=rule, init=init, u0=u0, seed=seed, device=device, dtype=dtype)
        options["backend"] = "torch"
        shared = EDNetwork(n_inputs, width, depth, **options)
        self.n_inputs, self.width, self.depth = shared.n_inputs, shared.width, shared.depth
        self.n_outputs = check.count("n_outputs", n_outputs)
        self.rule, self.u0, self.space = rule, shared.u0, shared.space
        outputs = EDNetwork(1, width, 0, n_outputs, **options).state_dict()
        state = {name: value[:, 0] if name.startswith("hidden") else value[0]
                 for name, value in shared.state_dict().items()}  # fmt: skip
        for name in ("output.weight", "output.bias"):  # (C, ..., 1) → (..., C)
            state[name] = outputs[name][..., 0].transpose(*range(1, outputs[name].ndim - 1), 0)
        if walls:  # [p, q, cell, class]
            state["output.weight"] = state["output.weight"] * (
                self._classes(self.width)[:, None] == np.arange(n_outputs)
            )
        self.centred = centred
        self.parameters = {name: self.asarray(value) for name, value in state.items()}

    def asarray(self, array: np.ndarray) -> torch.Tensor:
        """A NumPy array as a tensor of this network's device and dtype."""
        return self.space.asarray(array)

    def exclusive(self) -> AbstractContextManager:
        """The context in which its products run: any."""
        return nullcontext()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs: x (B, n_inputs) → (B, C). Keeps the activations for ``add_direction``."""
        x = self.space.check("x", x, ("B", self.n_inputs))
        self._sent = [x.expand(2, *x.shape)]  # (2, B, I), then (2, B, W) for each hidden layer
        for weight, bias in self._layers(self.parameters):
            self._sent.append(rules.layer(self._sent[-1][None], weight[None], bias[None], self.u0)[0])
        return self._sent[-1][0]  # (B, C)

    def add_direction(self, params: dict[str, torch.Tensor], error: torch.Tensor, alpha: float) -> None:
        """Adds α times the ED direction of the last ``forward`` to ``params``: error (B, C)."""
        layers = list(zip(self._layers(params), self._sent, self._sent[1:], strict=False))
        for n, ((weight, bias), x, y) in enumerate(layers):
            centre = error.mean(0) if self.centred and n < len(layers) - 1 else 0
            d = (error - centre) * (alpha / len(error))  # (B, C)
            d = d[:, self._classes(y.shape[-1])]  # (B, O), the error of each receiver's class
            for q, gain in enumerate((d.clip(min=0), d.clip(max=0)) if self.rule == "kaneko" else (d, d)):
                weight[:, q] += x[q].T @ (gain * rules.slope(y))  # (I, B) @ (2, B, O) → (2, I, O)
            bias += (d * rules.slope(y)).sum(1, keepdim=True)

    def keep_signs(self) -> None:
        """Under "kaneko": puts weights that have left their sign back to zero."""
        if self.rule == "kaneko":
            for weight, _ in self._layers(self.parameters):  # (2, 2, I, O) as [p, q, i, o]
                weight[:, 0].clamp_(min=0)
                weight[:, 1].clamp_(max=0)

    def _classes(self, cells):
        """The class whose error reaches each of these cells: (cells,)."""
        return np.arange(cells) % self.n_outputs

    def _layers(self, params):
        """The (weight, bias) of each layer: (2, 2, I, O) and (2, 1, O)."""
        hidden = zip(params["hidden.weight"], params["hidden.bias"], strict=True)
        first, last = ((params[f"{name}.weight"], params[f"{name}.bias"]) for name in ("input", "output"))
        return [first, *hidden, last]
