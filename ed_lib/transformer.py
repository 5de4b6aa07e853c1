"""A small transformer that models language: which character follows those before it.

B stretches of text in a batch, T characters in each, V characters in the vocabulary, C channels, L
blocks.

To a stream (B, T, C) each block adds what its attention answers, then what its perceptron answers,
each from the stream's values with mean 0 and variance 1 over the C channels (layer norm). All
parameters are matrices: GPT-2 (A. Radford and others, 2019) without biases, ReLU in place of GELU,
and scores with weights of their own. The sizes that a :class:`Transformer` has unless told
otherwise are nanoGPT's for a CPU.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ed_lib import check, models

# The standard deviation of a weight at the start, as GPT-2's
SPREAD = 0.02
# How much Adam keeps of its two averages in a step, as nanoGPT's for characters
AVERAGES = 0.9, 0.99
# Steps until the rate is full, and the share of it that is left at the end
WARMUP = 100
LAST = 0.1
# Stretches of held-out text that are read at a time
AT_ONCE = 64

causal = partial(F.scaled_dot_product_attention, is_causal=True)


class Transformer:
    """Gives each character's successor: numbers (B, T) → scores (B, T, V). With Adam, by
    :meth:`step`.

    rate: the highest of Adam; steps: how many there will be, for its schedule. ``parameters``: see
    :func:`shapes`.
    """

    def __init__(
        self,
        vocabulary: int,
        context: int = 64,
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        *,
        rate: float = 1e-3,
        steps: int = 2000,
        seed: int = 0,
    ):
        self.vocabulary = check.count("vocabulary", vocabulary)
        self.context = check.count("context", context)
        self.layers = check.count("layers", layers)
        self.heads = check.count("heads", heads)
        if check.count("width", width) % heads:
            raise ValueError(f"heads is {heads}; wanted a divisor of the width, {width}")
        check.positive("rate", rate)
        check.count("steps", steps)
        check.count("seed", seed, least=0)
        self.parameters = draw(shapes(vocabulary, context, layers, width), layers, seed)
        weights = list(self.parameters.values())
        self.optimizer = torch.optim.Adam(weights, rate, AVERAGES, fused=True)
        share = partial(risen_and_fallen, steps=steps)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, share)

    def forward(self, x: Tensor) -> Tensor:
        """Numbers of characters (B, T) → scores (B, T, V)."""
        return self.answers(x)["scores"]

    def answers(self, x: Tensor) -> dict[str, Tensor]:
        """What each part answers to (B, T): "embedding", "0.answer" (block 0's attention) and
        "0.down" (its perceptron), …, (B, T, C); "0.up", …, the cells inside a perceptron, (B, T,
        4 C); "scores" (B, T, V).
        """
        self.check_numbers(x)
        p = self.parameters
        stream = p["embedding"][x] + p["places"][: x.shape[1]]  # (B, T, C)
        found = {"embedding": stream}
        for n in range(self.layers):
            # (B, T, C) @ (C, 3 C): queries, keys and values, a third of the channels each
            asked = normal(stream) @ p[f"{n}.ask"]
            gathered = models.attention(asked, self.heads, causal)  # (B, T, C)
            answer = gathered @ p[f"{n}.answer"]
            stream = stream + answer
            # (B, T, C) @ (C, 4 C) @ (4 C, C)
            up = (normal(stream) @ p[f"{n}.up"]).relu()
            down = up @ p[f"{n}.down"]
            stream = stream + down
            found[f"{n}.answer"] = answer
            found[f"{n}.up"] = up
            found[f"{n}.down"] = down
        found["scores"] = normal(stream) @ p["scores"]
        return found

    def check_numbers(self, x: Tensor) -> None:
        """ValueError unless ``x`` holds numbers of characters, (B, T), in the context."""
        if x.ndim != 2 or x.shape[1] > self.context:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; wanted (B, T) with T of at most {self.context}"
            )
        if x.numel() and not (0 <= int(x.min()) and int(x.max()) < self.vocabulary):
            raise ValueError(
                f"x runs from {x.min()} to {x.max()}; wanted the numbers of {self.vocabulary} "
                "characters"
            )

    def learn(self, x: Tensor, target: Tensor) -> float:
        """Puts the gradient of the mean loss into each parameter's ``grad``: x and the characters
        after each, (B, T) → that loss.
        """
        check.shape("target", tuple(target.shape), tuple(x.shape))
        loss = mean_loss(self.forward(x), target)
        self.optimizer.zero_grad()
        loss.backward()
        return loss.item()

    def step(self, x: Tensor, target: Tensor) -> float:
        """One step: x and the characters after each, (B, T) → the mean loss before it, in nats."""
        loss = self.learn(x, target)
        self.optimizer.step()
        self.schedule.step()
        return loss


def shapes(V: int, T: int, L: int, C: int) -> dict[str, tuple[int, int]]:
    """The shape of each parameter, in the order in which they are drawn. A block has four: "ask",
    for its queries, keys and values; "answer", for what its attention gives; and the two layers of
    its perceptron, "up" and "down".
    """
    found = {"embedding": (V, C), "places": (T, C), "scores": (C, V)}
    for n in range(L):
        found[f"{n}.ask"] = C, 3 * C
        found[f"{n}.answer"] = C, C
        found[f"{n}.up"] = C, 4 * C
        found[f"{n}.down"] = 4 * C, C
    return found


def draw(shapes: dict[str, tuple[int, int]], layers: int, seed: int) -> dict[str, Tensor]:
    """Parameters of these shapes from N(0, 0.02²), in float32."""
    random = torch.Generator().manual_seed(seed)
    # Two parts of each block add to the stream. They start smaller, so that the sum of all has the
    # same spread in a deep network as in a shallow one.
    small = (2 * layers) ** -0.5
    parameters = {}
    for name, shape in shapes.items():
        weight = SPREAD * torch.randn(shape, generator=random)
        if name.endswith((".answer", ".down")):
            weight *= small
        parameters[name] = weight.requires_grad_()
    return parameters


def normal(x: Tensor) -> Tensor:
    """Layer norm with nothing to learn: to mean 0 and variance 1 over the channels, (…, C)."""
    return F.layer_norm(x, x.shape[-1:])


def mean_loss(scores: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of scores (B, T, V) and characters (B, T), a mean over both, in nats."""
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())


def risen_and_fallen(step: int, steps: int) -> float:
    """The share of the highest rate: it rises over WARMUP steps, and falls along half a cosine to
    LAST.
    """
    # From the first step on above zero, so that it is not lost
    risen = min((step + 1) / WARMUP, 1)
    gone = min(step / steps, 1)
    fallen = LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * gone))
    return risen * fallen


@torch.no_grad()
def held_out_loss(model: Transformer, numbers: Tensor, places: int | None = None) -> float:
    """The mean loss in nats of a text's characters (N,), read in stretches as long as the context:
    of ``places`` evenly spread ones, or all.
    """
    if places is not None:
        check.count("places", places)
    # (n, context + 1): a stretch shares its last character, which is only asked for, with the next
    stretches = numbers.unfold(0, model.context + 1, model.context)
    if places is not None and places < len(stretches):
        stretches = stretches[torch.linspace(0, len(stretches) - 1, places).long()]
    total = 0.0
    for some in stretches.split(AT_ONCE):
        scores = model.forward(some[:, :-1])
        target = some[:, 1:]
        total += F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="sum").item()
    return total / (len(stretches) * model.context)
