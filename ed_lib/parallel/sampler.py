"""Which samples come next: an order that ranks share, and that a checkpoint goes on with."""

import hashlib
from typing import Any

import torch

from ed_lib import check

# the bytes that seed the order of an epoch
SEED = 7


class Sampler:
    """The numbers of ``length`` samples, each once an epoch, in an order of its own in each epoch.

    ``epoch`` and ``taken``, of this epoch's samples, are the place in the data. All ranks have the
    same, and take their rows of each batch (:func:`.replica.local_rows`): so other ranks than those
    that saved it can go on.
    """

    def __init__(self, length: int, seed: int = 0):
        self.length = check.count("length", length)
        self.seed = check.count("seed", seed, least=0)
        self.go_to(0, 0)

    def go_to(self, epoch: int, taken: int) -> None:
        """Draws an epoch's order. Its number is in the seed: else all epochs had one order."""
        text = f"epoch {epoch} of {self.seed}"
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:SEED])
        draw = torch.Generator().manual_seed(number)
        self.order = torch.randperm(self.length, generator=draw)
        self.epoch = epoch
        self.taken = taken

    def take(self, batch: int) -> torch.Tensor:
        """The next ``batch`` numbers, (batch,); where an epoch ends, the next one begins."""
        wanted = check.count("batch", batch)
        parts = []
        while wanted:
            part = self.order[self.taken : self.taken + wanted]
            parts.append(part)
            wanted -= len(part)
            self.taken += len(part)
            if self.taken == self.length:
                self.go_to(self.epoch + 1, 0)
        return torch.cat(parts)

    def state_dict(self) -> dict[str, int]:
        return {
            "length": self.length,
            "seed": self.seed,
            "epoch": self.epoch,
            "taken": self.taken,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a place; what :meth:`check_state` refuses changes nothing."""
        self.check_state(state)
        self.seed = state["seed"]
        self.go_to(state["epoch"], state["taken"])

    def check_state(self, state: dict[str, Any]) -> None:
        """ValueError for what is no place, or one in another number of samples."""
        if not isinstance(state, dict) or state.keys() != self.state_dict().keys():
            wanted = ", ".join(self.state_dict())
            raise ValueError(f"the place in the data is {state!r}; wanted {wanted}")
        if state["length"] != self.length:
            came = f"the place in the data is one in {state['length']} samples"
            raise ValueError(f"{came}; wanted one in {self.length}")
