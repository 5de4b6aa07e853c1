"""A small transformer that models language, whose attention and whose perceptrons can be taught by
ED.

To a stream x (B, T, C) each block of the transformer adds what its attention answers, then what its
perceptron answers, each from the stream's values with mean 0 and variance 1 over the C channels
(layer norm). All parameters are matrices: GPT-2 (A. Radford and others, 2019) without biases, ReLU
in place of GELU, and scores with weights of their own. The error is e = softmax − target, (B, T,
V), divided by B·T.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ed_lib import check, models
from ed_lib.ed.relatives import broadcast

RULES = ("backprop", "broadcast", "frozen")
WARMUP, LAST = 100, 0.1  # steps until the rate is full; the share of it that is left at the end


class Transformer:
    """Gives each character's successor: numbers (B, T) → scores (B, T, V). With Adam, by
    :meth:`step`.

    attention, mlp: how these are taught. "backprop": by the gradient of the loss. "broadcast", ED's
    way: each channel of what they answer is told the e of one character, times the channel's fixed
    sign; in the perceptrons the cells between their two layers too, so that each weight learns from
    what its two ends know. "frozen": not at all. The embedding is taught as attention is; the
    scores' weights always have their gradient. rate: the highest of Adam; steps: how many there
    will be, for its schedule.
    """

    def __init__(
        self,
        vocabulary: int,
        context: int = 64,
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        *,
        attention: str = "backprop",
        mlp: str = "backprop",
        rate: float = 1e-3,
        steps: int = 2000,
        seed: int = 0,
    ):
        check.choice("attention", attention, RULES)
        check.choice("mlp", mlp, RULES)
        V, T, L, C = vocabulary, context, layers, width
        if width % heads:
            raise ValueError(f"heads is {heads}; wanted a divisor of the width, {width}")
        self.vocabulary, self.context, self.heads, self.layers = V, T, heads, L
        shapes = {"embedding": (V, C), "places": (T, C), "scores": (C, V)}
        self.taught = {
            "embedding": (attention, ["embedding", "places"])
        }  # {what answers: (rule, weights)}
        for n in range(L):  # queries, keys and values; what they give; the perceptron's two layers
            shapes |= {f"{n}.ask": (C, 3 * C), f"{n}.answer": (C, C)}
            shapes |= {f"{n}.up": (C, 4 * C), f"{n}.down": (4 * C, C)}
            self.taught[f"{n}.answer"] = attention, [f"{n}.ask", f"{n}.answer"]
            self.taught |= {f"{n}.{part}": (mlp, [f"{n}.{part}"]) for part in ("up", "down")}
        self.taught["scores"] = "backprop", ["scores"]
        random, small = torch.Generator().manual_seed(seed), (2 * L) ** -0.5
        self.parameters = {}
        for name, shape in shapes.items():  # 2 L of them add to the stream, and start small
            scale = small if name.endswith((".answer", ".down")) else 1
            self.parameters[name] = (
                0.02 * torch.randn(shape, generator=random) * scale
            ).requires_grad_()
        self.optimizer = torch.optim.Adam(
            [*self.parameters.values()], rate, (0.9, 0.99), fused=True
        )
        share = partial(risen_and_fallen, steps=steps)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, share)

    def forward(self, x: Tensor) -> Tensor:
        """Numbers of characters (B, T) → scores (B, T, V)."""
        return self.answers(x)["scores"]

    def answers(self, x: Tensor) -> dict[str, Tensor]:
        """What each part that is ``taught`` answers: (B, T) → (B, T, C), cells of perceptrons (B,
        T, 4 C).
        """
        if x.ndim != 2 or x.shape[1] > self.context:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; wanted (B, T) with T of at most {self.context}"
            )
        if x.numel() and not (0 <= int(x.min()) and int(x.max()) < (V := self.vocabulary)):
            raise ValueError(
                f"x runs from {x.min()} to {x.max()}; wanted the numbers of {V} characters"
            )
        p, core = self.parameters, partial(F.scaled_dot_product_attention, is_causal=True)
        normal = lambda x: F.layer_norm(x, x.shape[-1:])  # noqa: E731, to mean 0 and variance 1, (…, C)
        found = {
            "embedding": (stream := p["embedding"][x] + p["places"][: x.shape[1]])
        }  # (B, T, C)
        for n in range(self.layers):
            y = models.attention(
                normal(stream) @ p[f"{n}.ask"], self.heads, core
            )  # (B, T, 3 C) → (B, T, C)
            found[f"{n}.answer"] = y @ p[f"{n}.answer"]
            stream = stream + found[f"{n}.answer"]
            found[f"{n}.up"] = (normal(stream) @ p[f"{n}.up"]).relu()  # (B, T, 4 C)
            found[f"{n}.down"] = found[f"{n}.up"] @ p[f"{n}.down"]
            stream = stream + found[f"{n}.down"]
        return found | {"scores": normal(stream) @ p["scores"]}

    def learn(self, x: Tensor, target: Tensor) -> float:
        """Puts what each parameter is to descend into its ``grad``, None if it does not learn: x
        and target (B, T) → the mean loss. Each rule moves its own parts' weights, and no others.
        """
        found = self.answers(x)
        loss = F.cross_entropy(found["scores"].flatten(0, 1), target.flatten())
        error = found["scores"].detach().softmax(2) - F.one_hot(
            target, self.vocabulary
        )  # (B, T, V)
        self.optimizer.zero_grad()
        by_loss = [
            part for rule, parts in self.taught.values() for part in parts if rule == "backprop"
        ]
        moves: list[Any] = [
            (loss, by_loss, None)
        ]  # (what, by which weights, times what it is told)
        for name, (rule, parts) in self.taught.items():
            if (
                rule == "broadcast"
            ):  # as if the loss were what the part answers times what it is told
                moves.append(
                    (found[name], parts, broadcast(error / target.numel(), found[name].shape[2]))
                )
        for output, parts, told in moves:
            weights = [self.parameters[part] for part in parts]
            grads = torch.autograd.grad(output, weights, told, retain_graph=len(moves) > 1)
            for weight, grad in zip(weights, grads, strict=True):
                weight.grad = grad
        return loss.item()

    def step(self, x: Tensor, target: Tensor) -> float:
        """One step: x and the characters after each, (B, T) → the mean loss before it, in nats."""
        loss = self.learn(x, target)
        self.optimizer.step()
        self.schedule.step()
        return loss


def risen_and_fallen(step: int, steps: int) -> float:
    """The share of the highest rate: it rises over WARMUP steps, and falls along half a cosine to
    LAST.
    """
    fallen = LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * min(step / steps, 1)))
    return min((step + 1) / WARMUP, 1) * fallen


@torch.no_grad()
def held_out_loss(model: Transformer, numbers: Tensor, places: int | None = None) -> float:
    """The mean loss in nats of a text's characters (N,), read in stretches as long as the context:
    of ``places`` evenly spread ones, or all.
    """
    stretches = numbers.unfold(0, model.context + 1, model.context)  # (n, context + 1)
    if places is not None and places < len(stretches):
        stretches = stretches[torch.linspace(0, len(stretches) - 1, places).long()]
    pairs = ((model.forward(some[:, :-1]), some[:, 1:]) for some in stretches.split(64))
    losses = [
        F.cross_entropy(s.flatten(0, 1), t.flatten(), reduction="sum").item() for s, t in pairs
    ]
    return sum(losses) / (len(stretches) * model.context)
