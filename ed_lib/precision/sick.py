"""SICK: pairs of short sentences, and whether the first entails the second, contradicts it, or neither.

M. Marelli and others, "A SICK cure for the evaluation of compositional distributional semantic models" (LREC
2014), as the pairs of SemEval-2014.
"""

import hashlib
from dataclasses import dataclass, field

from ed_lib import published

LABELS = ("CONTRADICTION", "ENTAILMENT", "NEUTRAL")
URL = (
    "https://raw.githubusercontent.com/praguna/sick_dataset/a35d440f028175a4c774a19e9d6ef02c3a6f9e06/SICK.txt"
)
SHA256 = "3de6211d6cee83b1b444c1205da36bd18e6cabf5b4debfc24995b1510b796878"


@dataclass(frozen=True)
class Pairs:
    """N pairs: ``first`` and ``second`` sentences, ``labels``, places in LABELS, and how alike people found
    them in meaning, ``relatedness`` from 1 to 5.
    """

    first: list[str] = field(repr=False)
    second: list[str] = field(repr=False)
    labels: list[int] = field(repr=False)
    relatedness: list[float] = field(default_factory=list, repr=False)

    def __len__(self):
        return len(self.labels)


def load() -> tuple[Pairs, Pairs]:
    """9,927 pairs: (to learn from, held out), the latter about a fifth, by :func:`is_held_out`. No pair
    stands in both; single sentences do, as in the official split. Errors: :func:`ed_lib.published.file`'s.
    """
    lines = published.file("sick", "SICK.txt", URL, SHA256).read_text(encoding="utf-8").splitlines()
    parts: tuple[Pairs, Pairs] = Pairs([], [], []), Pairs([], [], [])
    for line in lines[1:]:  # the first names the columns
        _, first, second, relatedness, label = line.split("\t")
        pairs = parts[is_held_out(first, second)]
        pairs.first.append(first)
        pairs.second.append(second)
        pairs.labels.append(LABELS.index(label))
        pairs.relatedness.append(float(relatedness))
    return parts


def is_held_out(first: str, second: str) -> bool:
    """Whether the SHA-256 of the two sentences, the smaller first, is divisible by five. A hundred and fifty
    pairs stand in the file more than once, as they are or turned round: they stay together.
    """
    both = "\n".join(sorted([first, second]))
    return int(hashlib.sha256(both.encode()).hexdigest(), 16) % 5 == 0
