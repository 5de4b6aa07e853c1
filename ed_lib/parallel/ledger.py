"""What training holds in memory, and sends, by formula; and the bytes of tensors that are there.

Ψ parameters, p devices, L layers, H hidden, a heads, T tokens in a sequence, b sequences. S.
Rajbhandari and others, "ZeRO" (2020), section 3; V. Korthikanti and others (2022), section 4.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from ed_lib import check
from ed_lib.models import RECOMPUTE


@dataclass(frozen=True)
class Bytes:
    """Bytes a parameter: of the weights that compute, of gradients, and of what the optimizer
    keeps.
    """

    weights: float = 2
    gradients: float = 2
    optimizer: float = 12  # a float32 copy of the weights, and Adam's two moments in float32


# 16-bit training with Adam, and float32 with Adam: 16 bytes a parameter both.
MIXED = Bytes()
FULL = Bytes(4, 4, 8)


def state(parameters: float, p: int = 1, stage: int = 0, each: Bytes = MIXED) -> dict[str, float]:
    """Bytes that a device holds between two steps: {"weights", "gradients", "optimizer"}.

    ZeRO's stage 1 shares the optimizer's state out over p devices, 2 the gradients too, 3 the
    weights too.
    """
    check.choice("stage", stage, (0, 1, 2, 3))
    # What is shared out from which stage on.
    since = {"weights": 3, "gradients": 2, "optimizer": 1}
    held = {}
    for name, first in since.items():
        whole = parameters * getattr(each, name)
        held[name] = whole / (p if stage >= first else 1)
    return held


def sent(numbers: int, p: int, stage: int, passes: int = 1) -> float:
    """Numbers that a device sends in a step, for so many parameters: half a ring is (p − 1)/p of
    them.

    Stages 0 to 2: a reduce-scatter and an all-gather, 2 halves; stage 3 gathers forward and
    backward, and scatters: 3. passes: backward passes before a step; stages 2 and 3 send gradients
    after each of them.
    """
    check.choice("stage", stage, (0, 1, 2, 3))
    half = (p - 1) / p * numbers
    halves = {0: 2, 1: 2, 2: 1 + passes, 3: 3 * passes}
    return half * halves[stage]


def activations(
    tokens: int,
    sequences: int,
    hidden: int,
    heads: int,
    recompute: str = "none",
    itemsize: float = 2,
) -> float:
    """Bytes that one block of :class:`ed_lib.models.GPT` keeps for its backward pass.

    For each token 16 H numbers: the inputs of norms, products and the GELU, and queries, keys and
    values. And for each head T of softmax, which "selective" recomputation does without; "full"
    keeps the block's input. The published count, 17 H and 2.5 T at two bytes a number, has dropout
    as well.
    """
    check.choice("recompute", recompute, RECOMPUTE)
    numbers = {
        "none": 16 * hidden + heads * tokens,
        "selective": 16 * hidden,
        "full": hidden,
    }
    return tokens * sequences * numbers[recompute] * itemsize


def nbytes(values: Iterable) -> int:
    """The bytes of the memory that dense tensors with axes lie in, each counted once.

    values: tensors, among which there may be other things; one tensor; or a ``state_dict``.
    """
    if isinstance(values, Mapping):
        values = values.values()
    # A tensor would be iterated to its rows, and one of numbers to tensors without axes.
    if isinstance(values, torch.Tensor):
        values = [values]
    found = {}
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() and value.layout is torch.strided:
            # Views of one memory share its address.
            storage = value.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())
