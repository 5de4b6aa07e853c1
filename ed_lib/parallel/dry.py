"""A dry run: one process is rank 0 of a world of any size, in which nothing is sent, and all that would be is
written down.

It rests on PyTorch's "fake" backend, which its own tests use, and torchtitan's dry runs.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ed_lib import check

# of a ring, in each of which a rank sends (p − 1)/p
QUIET = ("wait", "wrap", "barrier", "broadcast", "scatter")  # sends nothing, or is of the start of a model
HALVES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@dataclass(frozen=True)
class Collective:
    """What a rank does: "all_reduce", "all_gather", "reduce_scatter" or "all_to_all" among so many ``ranks``,
    or a "collective_permute", in which each sends one message.

    ``bytes``: of the whole tensor, so of what all ranks have together before or after; of an all-to-all what
    one rank has; or of the message.
    """

    name: str
    bytes: int
    ranks: int

    @property
    def sent(self) -> float:
        """Bytes that each rank sends, by rings."""
        if self.name == "collective_permute":
            return self.bytes
        return HALVES[self.name] * (self.ranks - 1) / self.ranks * self.bytes


class Watch(TorchDispatchMode):
    """While it is on, collects the collectives that PyTorch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Collective] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        space, name = func._schema.name.split("::")
        name = re.sub("^all(?=[gr])", "all_", name.strip("_")).replace("alltoall_base", "all_to_all")
        if "c10d" in space and not name.startswith(QUIET):
            known = next((known for known in HALVES if name.startswith(known)), None)
            if known is None:
                raise NotImplementedError(f"{func} is no collective whose bytes are known: {list(HALVES)}")
            leaves = tree_leaves((args, kwargs, result))
            sizes, ranks = [leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor)], _ranks(leaves)
            size = ranks * min(sizes) if known in ("all_gather", "reduce_scatter") else max(sizes)
            self.seen.append(Collective(known, size, ranks))
        return result


def count(world: int, run: Callable[[], None]) -> list[Collective]:
    """Calls ``run()`` as rank 0 of ``world`` → the collectives that it asks for, in order.

    What is computed is worthless; shapes are right. RuntimeError where this process is already a rank.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    check.count("world", world)
    if dist.is_initialized():
        raise RuntimeError("this process is a rank already; wanted one that is none, for a dry run")
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        with warnings.catch_warnings(), Watch() as watch:
            warnings.simplefilter("ignore")  # about numbers, which are worthless here
            run()
    finally:
        dist.destroy_process_group()
    return watch.seen


def _ranks(leaves):
    """Of the group among a collective's arguments: an object, or a name."""
    for leaf in leaves:
        if isinstance(leaf, torch.ScriptObject) and "ProcessGroup" in str(leaf._type()):
            return dist.ProcessGroup.unbox(leaf).size()
    name = next(leaf for leaf in reversed(leaves) if isinstance(leaf, str))
    return dist.distributed_c10d._resolve_process_group(name).size()
