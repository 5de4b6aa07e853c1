"""A small transformer that reads characters; its attention and its perceptrons can be taught by other rules.

To a stream x (B, T, C) each block adds what its attention answers, then what its perceptron answers, each
from the stream's values with mean 0 and variance 1 over the C channels (layer norm). All parameters are
matrices: GPT-2 (A. Radford and others, 2019) without biases, ReLU in place of GELU, and scores with weights
of their own. The error is e = softmax − target, (B, T, V), divided by B·T.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ed_lib import check
from ed_lib.ed.characters import check_numbers
from ed_lib.models import attention

RULES = ("backprop", "direct", "broadcast", "frozen")
WARMUP, LAST = 100, 0.1  # steps until the rate is full; the share of it that is left at the end


class Transformer:
    """Gives each character's successor: numbers (B, T) → scores (B, T, V). With Adam, by :meth:`step`.

    attention, mlp: how these are taught. "backprop": by what arrives from the loss, through all above.
    "direct": what they answer is told e times a fixed random matrix of their own (direct feedback alignment;
    inside, by gradient). "broadcast": each channel is told the e of one character, times the channel's fixed
    sign; in the perceptrons the cells between their two layers too, so that each weight learns from what its
    two ends know. "frozen": not at all. The embedding is told as the perceptrons are, unless something has
    the gradient passed down anyway; it is frozen with both. The scores' weights always have their gradient.

    one_signed: the weights of perceptrons and scores have the signs of ED's networks, and keep them.
    rate: the highest of Adam; steps: how many there will be, for its schedule.
    """

    def __init__(
        self, vocabulary: int, context: int = 64, layers: int = 4, heads: int = 4, width: int = 128, *,
        attention: str = "backprop", mlp: str = "backprop", one_signed: bool = False,
        rate: float = 1e-3, steps: int = 2000, seed: int = 0,
    ):  # fmt: skip
        check.choice("attention", attention, RULES)
        check.choice("mlp", mlp, RULES)
        V, C, L = (
            check.count(n, v) for n, v in (("vocabulary", vocabulary), ("width", width), ("layers", layers))
        )
        if width % check.count("heads", heads):
            raise ValueError(f"heads is {heads}; wanted a divisor of the width, {width}")
        self.vocabulary, self.context, self.heads = V, check.count("context", context), heads
        self.rules, self.one_signed, self.layers = (attention, mlp), one_signed, L
        random = torch.Generator().manual_seed(seed)
        shapes = {"embedding": (V, C), "places": (context, C), "scores": (C, V)}
        for n in range(L):
            shapes |= {
                f"{n}.ask": (C, 3 * C),
                f"{n}.answer": (C, C),
            }  # queries, keys and values; what they give
            shapes |= {f"{n}.up": (C, 4 * C), f"{n}.down": (4 * C, C)}
        small = (2 * L) ** -0.5  # for what is added to the stream 2 L times
        self.parameters = {
            name: 0.02
            * torch.randn(shape, generator=random)
            * (small if name.endswith((".answer", ".down")) else 1)
            for name, shape in shapes.items()
        }
        self.classes = {cells: torch.arange(cells) % V for cells in (C, 4 * C)}  # whose e a cell is told
        self.signs = {cells: 1.0 - 2 * (torch.arange(cells) // V % 2) for cells in (C, 4 * C)}
        self.direct = {
            name: torch.randn(V, C, generator=random) / V**0.5
            for name in ["embedding", *(f"{n}.{part}" for n in range(L) for part in ("answer", "down"))]
        }
        inner, outer = self.signs[4 * C], self.signs[C]
        kept = {"scores": outer[:, None].expand(C, V)}
        for n in range(L):
            kept |= {f"{n}.up": outer[:, None] * inner, f"{n}.down": inner[:, None] * outer}
        self.kept = kept if one_signed else {}  # the sign of each weight
        for name, sign in self.kept.items():
            self.parameters[name].abs_().mul_(sign)
        for p in self.parameters.values():
            p.requires_grad_()
        self.optimizer = torch.optim.Adam(
            self.parameters.values(), check.positive("rate", rate), (0.9, 0.99), fused=True
        )
        total = check.count("steps", steps)

        def share(step: int) -> float:
            fallen = LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * min(step / total, 1)))
            return min((step + 1) / WARMUP, 1) * fallen

        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, share)

    def forward(self, x: Tensor, rules: Sequence[str] | None = None) -> Tensor:
        """Numbers of characters (B, T) → scores (B, T, V). Keeps what each part was given and answered."""
        if x.ndim != 2 or x.shape[1] > self.context:
            raise ValueError(f"x has shape {tuple(x.shape)}; wanted (B, T) with T of at most {self.context}")
        check_numbers(x, self.vocabulary)
        p, chain = self.parameters, "backprop" in (rules or self.rules)
        apart = (lambda y: y) if chain else Tensor.detach  # where no gradient is passed down, none is kept
        self.given: dict[str, Tensor] = {}
        self.answered = {"embedding": p["embedding"][x] + p["places"][: x.shape[1]]}  # (B, T, C)
        stream = apart(self.answered["embedding"])
        for n in range(self.layers):
            y = self.attend(normal(stream) @ p[f"{n}.ask"])  # (B, T, C)
            self.answered[f"{n}.answer"] = y @ p[f"{n}.answer"]
            stream = apart(stream + self.answered[f"{n}.answer"])
            self.given[f"{n}.up"] = normal(stream)
            self.given[f"{n}.down"] = (self.given[f"{n}.up"] @ p[f"{n}.up"]).relu()  # (B, T, 4 C)
            self.answered[f"{n}.down"] = self.given[f"{n}.down"] @ p[f"{n}.down"]
            stream = apart(stream + self.answered[f"{n}.down"])
        return normal(stream) @ p["scores"]

    def attend(self, asked: Tensor) -> Tensor:
        """Queries, keys and values (B, T, 3 C) → what each place gathers from those before it, (B, T, C)."""
        return attention(asked, self.heads, partial(F.scaled_dot_product_attention, is_causal=True))

    def directions(self, x: Tensor, target: Tensor, rules: Sequence[str] | None = None) -> float:
        """Puts what each parameter is to descend into its ``grad``, None if it does not learn: x and target
        (B, T) → the mean loss. rules: (attention, mlp), in place of the network's own.
        """
        attention, mlp = rules = rules or self.rules
        scores = self.forward(x, rules)
        loss = F.cross_entropy(scores.flatten(0, 1), target.flatten())
        error = (
            scores.detach().softmax(2) - F.one_hot(target, self.vocabulary)
        ) / target.numel()  # (B, T, V)
        for p in self.parameters.values():
            p.grad = None
        outputs, told = [loss], [torch.ones(())]
        if "backprop" not in rules:
            by = {"embedding": mlp if mlp != "frozen" else attention}
            by |= {f"{n}.answer": attention for n in range(self.layers)}
            by |= {f"{n}.down": mlp for n in range(self.layers) if mlp == "direct"}
            for name, rule in by.items():
                if rule != "frozen":
                    outputs.append(self.answered[name])
                    told.append(self.told(error, rule, name))
        torch.autograd.backward(outputs, told)
        for n in range(self.layers):
            if mlp == "broadcast":
                self.broadcast(error, n)
            for name in [f"{n}.ask", f"{n}.answer"] * (attention == "frozen"):
                self.parameters[name].grad = None
            for name in [f"{n}.up", f"{n}.down"] * (mlp == "frozen"):
                self.parameters[name].grad = None
        return loss.item()

    def told(self, error: Tensor, rule: str, name: str) -> Tensor:
        """What the channels that ``name`` answers with are told: (B, T, V) → (B, T, C)."""
        if rule == "direct":
            return error @ self.direct[name]
        cells = self.answered[name].shape[2]
        return error[:, :, self.classes[cells]] * self.signs[cells]

    @torch.no_grad()
    def broadcast(self, error: Tensor, n: int) -> None:
        """ED's rule for the two layers of weights of a perceptron: error (B, T, V) → their ``grad``."""
        for name in (f"{n}.up", f"{n}.down"):
            given, weight = self.given[name].flatten(0, 1), self.parameters[name]  # (B T, I), (I, O)
            cells = weight.shape[1]
            told = (error[:, :, self.classes[cells]] * self.signs[cells]).flatten(0, 1)  # (B T, O)
            if name.endswith("up"):  # whose cells are ReLU
                told = told * (self.given[f"{n}.down"].flatten(0, 1) > 0)
            weight.grad = given.T @ told

    def step(self, x: Tensor, target: Tensor) -> float:
        """One step: x and the characters after each, (B, T) → the mean loss before it, in nats."""
        loss = self.directions(x, target)
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            for name, sign in self.kept.items():
                self.parameters[name].mul_(sign).clamp_(min=0).mul_(sign)
        return loss

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """(B, T) → the scores of what follows the last, (B, V); of a longer text its end is read."""
        return self.forward(x[:, -self.context :])[:, -1]


def normal(x: Tensor) -> Tensor:
    """Layer norm without parameters: (…, C) → mean 0 and variance 1 over the last axis."""
    return F.layer_norm(x, x.shape[-1:])


def known_signs(net: Transformer, x: Tensor, every: int = 1) -> dict[str, float]:
    """For each part that answers, the share of its channels' effects that have the channel's sign: how much a
    channel moves, at the same place, the score of the character whose error it is told. x (B, T); every: only
    one character in so many is looked at. ValueError for a network whose weights may have any sign.
    """
    if not net.one_signed:
        raise ValueError("net has weights of any sign; wanted one with one_signed=True")
    scores = net.forward(x, ("backprop", "backprop"))  # (B, T, V)
    right, counted = dict.fromkeys(net.answered, 0), dict.fromkeys(net.answered, 0)
    for k in range(0, net.vocabulary, check.count("every", every)):
        slopes = torch.autograd.grad(scores[:, :, k].sum(), [*net.answered.values()], retain_graph=True)
        for name, slope in zip(net.answered, slopes, strict=True):  # (B, T, C)
            cells = net.classes[slope.shape[2]] == k
            effect = slope[:, :, cells] * net.signs[slope.shape[2]][cells]
            right[name] += int((effect > 0).sum())
            counted[name] += int((effect != 0).sum())
    return {name: right[name] / counted[name] for name in right}
