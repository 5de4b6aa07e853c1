"""What a rank's random numbers come from: the generators of PyTorch, CUDA, NumPy and Python.

Ranks are started alike, so that they draw alike, and dropout would drop the same places of every
rank's samples. So they part ways once they have the same weights. A checkpoint has the states of
all ranks, since a run that goes on from it draws what it would have drawn.
"""

import hashlib
import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ed_lib.parallel import collectives

# the bytes that seed PyTorch, and those of them that NumPy takes
TORCH_SEED = 8
NUMPY_SEED = 4


def states() -> dict[str, Any]:
    """The state of each generator that everybody draws from, as tensors, numbers, tuples and
    lists. (A ``torch.Generator`` of one's own is not among them.)
    """
    numpy: Any = np.random.get_state()  # noqa: NPY002
    kind, words, *rest = numpy
    found = {
        "torch": torch.get_rng_state(),
        "numpy": (kind, words.tolist(), *rest),
        "python": random.getstate(),
    }
    # to ask for it would start CUDA where nobody uses it
    if torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def restore(found: dict[str, Any]) -> None:
    """Lets each generator go on from its state, as :func:`states` found it."""
    torch.set_rng_state(found["torch"])
    np.random.set_state(found["numpy"])  # noqa: NPY002
    random.setstate(found["python"])
    if "cuda" in found:
        torch.cuda.set_rng_state(found["cuda"])


def seed(text: str) -> None:
    """Lets all generators begin anew: by another text, with other numbers."""
    content = hashlib.sha256(text.encode()).digest()
    # the GPU's too
    torch.manual_seed(int.from_bytes(content[:TORCH_SEED], signed=True))
    np.random.seed(int.from_bytes(content[:NUMPY_SEED]))  # noqa: NPY002
    random.seed(content)


def part_ways(equal_draws: bool, group: Any = None) -> None:
    """From here on each rank draws other numbers, unless ``equal_draws``. All ranks call it. Rank 0
    goes on as it was, and its state seeds the others: so ``torch.manual_seed`` on rank 0 decides
    what all of them draw.
    """
    collectives.agree(f"equal_draws={equal_draws!r}", group)
    if equal_draws:
        return
    mine = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    first = collectives.gathered(mine, group)[0]
    rank = dist.get_rank(group)
    if rank > 0:
        seed(f"rank {rank} beside {first}")
