"""Language models of characters: a perceptron that reads a window, and what any such model is used for."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ed_lib import check
from ed_lib.ed.relatives import Perceptron


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
    if isinstance(model, WindowModel):
        stretches = numbers.unfold(0, model.context + 1, 1)  # (N − context, context + 1)
    else:
        stretches = numbers.unfold(0, model.context + 1, model.context)
    if places is not None and places < len(stretches):
        stretches = stretches[torch.linspace(0, len(stretches) - 1, places).long()]
    total, count = 0.0, 0
    for some in stretches.split(4096 if isinstance(model, WindowModel) else 64):
        if isinstance(model, WindowModel):
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
    missing = model.context - numbers.shape[1] if isinstance(model, WindowModel) else 0
    if not start or missing > 0:
        wanted = model.context if isinstance(model, WindowModel) else 1
        raise ValueError(f"start has {len(start)} characters; wanted at least {wanted}")
    for _ in range(check.count("count", count)):
        shares = (model.scores(numbers) / temperature).softmax(1)
        numbers = torch.cat([numbers, torch.multinomial(shares, 1, generator=draw)], 1)
    return "".join(characters[number] for number in numbers[0, len(start) :])


def check_numbers(x: Tensor, vocabulary: int) -> None:
    """ValueError unless these are numbers of characters."""
    if x.numel() and not (0 <= int(x.min()) and int(x.max()) < vocabulary):
        found = f"from {int(x.min())} to {int(x.max())}"
        raise ValueError(f"x runs {found}; wanted the numbers of {vocabulary} characters, from 0")
