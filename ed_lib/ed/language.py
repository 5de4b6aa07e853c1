"""Language models of characters: a perceptron that reads a window, a small transformer whose attention and
whose perceptrons can be taught by other rules, and what any such model is used for.

To a stream x (B, T, C) each block of the transformer adds what its attention answers, then what its
perceptron answers, each from the stream's values with mean 0 and variance 1 over the C channels (layer norm).
All parameters are matrices: GPT-2 (A. Radford and others, 2019) without biases, ReLU in place of GELU, and
scores with weights of their own. The error is e = softmax − target, (B, T, V), divided by B·T.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ed_lib import check, models
from ed_lib.ed.relatives import Perceptron

RULES = ("backprop", "direct", "broadcast", "frozen")
WARMUP, LAST = 100, 0.1  # steps until the rate is full; the share of it that is left at the end


class WindowModel:
    """Gives a character's successor from the last ``context`` characters, by a Perceptron that reads them
    one-hot. hidden: the widths of its hidden layers; options: :class:`ed_lib.ed.relatives.Perceptron`'s.
    """

    def __init__(
        self, vocabulary: int, context: int = 8, hidden: Sequence[int] = (512, 512), rule: str = "backprop",
        rate: float = 1e-3, **options: Any,
    ):  # fmt: skip
        self.vocabulary, self.context = check.count("vocabulary", vocabulary), check.count("context", context)
        self.net = Perceptron((context * vocabulary, *hidden, vocabulary), rule, rate, **options)

    def read(self, x: Tensor) -> Tensor:
        """Numbers of characters (B, context) → one-hot, (B, context · V)."""
        check_numbers(x, self.vocabulary)
        if x.shape[1] != self.context:
            raise ValueError(f"x has {x.shape[1]} characters in a row; wanted {self.context}")
        return F.one_hot(x, self.vocabulary).flatten(1).to(self.net.weights[0])

    def step(self, x: Tensor, target: Tensor) -> float:
        """One step: x (B, context), target (B,), the characters after → the mean loss before it, in nats."""
        answers = self.net.step(self.read(x), F.one_hot(target, self.vocabulary).to(self.net.weights[0]))
        return -answers.gather(1, target[:, None]).clamp(min=1e-30).log().mean().item()

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """(B, N) → the scores of what follows the last, (B, V); of a longer text its end is read."""
        self.net.forward(self.read(x[:, -self.context :]))
        return self.net.sums[-1]


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
            check.count("vocabulary", vocabulary),
            check.count("width", width),
            check.count("layers", layers),
        )
        if width % check.count("heads", heads):
            raise ValueError(f"heads is {heads}; wanted a divisor of the width, {width}")
        self.vocabulary, self.context, self.heads = V, check.count("context", context), heads
        self.rules, self.one_signed, self.layers = (attention, mlp), one_signed, L
        shapes = {"embedding": (V, C), "places": (context, C), "scores": (C, V)}
        for n in range(L):  # queries, keys and values; what they give; the perceptron's two layers
            shapes |= {f"{n}.ask": (C, 3 * C), f"{n}.answer": (C, C)}
            shapes |= {f"{n}.up": (C, 4 * C), f"{n}.down": (4 * C, C)}
        random, small = torch.Generator().manual_seed(seed), (2 * L) ** -0.5
        self.parameters = {}
        for name, shape in shapes.items():  # 2 L of them add to the stream, and start small
            scale = small if name.endswith((".answer", ".down")) else 1
            self.parameters[name] = 0.02 * torch.randn(shape, generator=random) * scale
        self.classes = {cells: torch.arange(cells) % V for cells in (C, 4 * C)}  # whose e a cell is told
        self.signs = {cells: 1.0 - 2 * (torch.arange(cells) // V % 2) for cells in (C, 4 * C)}
        told = ["embedding", *(f"{n}.{part}" for n in range(L) for part in ("answer", "down"))]
        self.direct = {name: torch.randn(V, C, generator=random) / V**0.5 for name in told}
        inner, outer = self.signs[4 * C], self.signs[C]
        kept = {"scores": outer[:, None].expand(C, V)}
        for n in range(L):
            kept |= {f"{n}.up": outer[:, None] * inner, f"{n}.down": inner[:, None] * outer}
        self.kept = kept if one_signed else {}  # the sign of each weight
        for name, sign in self.kept.items():
            self.parameters[name].abs_().mul_(sign)
        leaves = [p.requires_grad_() for p in self.parameters.values()]
        self.optimizer = torch.optim.Adam(leaves, check.positive("rate", rate), (0.9, 0.99), fused=True)
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
        return models.attention(asked, self.heads, partial(F.scaled_dot_product_attention, is_causal=True))

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
            for part, rule in {"ask": attention, "answer": attention, "up": mlp, "down": mlp}.items():
                if rule == "frozen":
                    self.parameters[f"{n}.{part}"].grad = None
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


def windows(numbers: Tensor, context: int, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Without end: x (batch, context) and what follows each, (batch,), from places drawn by ``seed``."""
    draw, span = torch.Generator().manual_seed(seed), torch.arange(context)
    while True:
        starts = torch.randint(len(numbers) - context, (batch,), generator=draw)[:, None]  # (B, 1)
        yield numbers[starts + span], numbers[starts[:, 0] + context]


@torch.no_grad()
def held_out_loss(model: Any, numbers: Tensor, places: int | None = None) -> float:
    """The mean loss in nats of a text's characters (N,), of ``places`` evenly spread stretches or all: in
    stretches as long as its context, each place of one, for a model that scores all places, as a transformer
    does; from full windows for a :class:`WindowModel`.
    """
    window = isinstance(model, WindowModel)
    stretches = numbers.unfold(0, model.context + 1, 1 if window else model.context)  # (n, context + 1)
    if places is not None and places < len(stretches):
        stretches = stretches[torch.linspace(0, len(stretches) - 1, places).long()]
    total, count = 0.0, 0
    for some in stretches.split(4096 if window else 64):
        if window:
            scores, target = model.scores(some[:, :-1]), some[:, -1]
        else:
            scores, target = model.forward(some[:, :-1]).flatten(0, 1), some[:, 1:].flatten()
        total += F.cross_entropy(scores, target, reduction="sum").item()
        count += len(target)
    return total / count


def counting_loss(train: Tensor, held_out: Tensor, before: int, vocabulary: int, more: float = 0.1) -> float:
    """The loss in nats, on the second text, of a model that only counts: how often each character followed
    the last ``before`` characters in the first text, each count raised by ``more``.
    """
    powers = vocabulary ** torch.arange(before + 1)  # a stretch of characters as one number
    counts = torch.full((vocabulary ** (before + 1),), more, dtype=torch.float64)
    known, asked = ((text.unfold(0, before + 1, 1) * powers.flip(0)).sum(1) for text in (train, held_out))
    counts += torch.bincount(known, minlength=len(counts))
    counts = counts.view(-1, vocabulary)  # (what came before, what followed)
    shares = counts / counts.sum(1, keepdim=True)
    return -shares.flatten()[asked].log().mean().item()


def encode(text: str, characters: str) -> Tensor:
    """A text as numbers, (N,) int64: number k is characters[k]. ValueError for one that is not among them."""
    if unknown := sorted(set(text) - set(characters)):
        wanted = f"only the {len(characters)} characters that the model knows"
        raise ValueError(f"text has {', '.join(map(repr, unknown))}; wanted {wanted}")
    return torch.tensor([characters.index(character) for character in text], dtype=torch.int64)


def sample(
    model: Any, start: str, count: int, characters: str, *, temperature: float = 1.0, seed: int = 0
) -> str:
    """``count`` characters that follow ``start``, each drawn by the model's softmax(scores / temperature)."""
    check.positive("temperature", temperature)
    draw, numbers = torch.Generator().manual_seed(seed), encode(start, characters)[None]  # (1, N)
    least = model.context if isinstance(model, WindowModel) else 1
    if len(start) < least:
        raise ValueError(f"start has {len(start)} characters; wanted at least {least}")
    for _ in range(check.count("count", count)):
        shares = (model.scores(numbers) / temperature).softmax(1)
        numbers = torch.cat([numbers, torch.multinomial(shares, 1, generator=draw)], 1)
    return "".join(characters[number] for number in numbers[0, len(start) :])


def check_numbers(x: Tensor, vocabulary: int) -> None:
    """ValueError unless these are numbers of characters."""
    if x.numel() and not (0 <= int(x.min()) and int(x.max()) < vocabulary):
        found = f"from {int(x.min())} to {int(x.max())}"
        raise ValueError(f"x runs {found}; wanted the numbers of {vocabulary} characters, from 0")
