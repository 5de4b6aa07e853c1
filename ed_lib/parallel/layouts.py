"""What a compiler sends when only layouts of arrays are declared: collectives, read from its program.

JAX's part of the book. It needs jax, and as many devices as a layout names; a CPU makes any number of them.
"""

import math
import os
import re
from dataclasses import dataclass
from typing import Any

from ed_lib import check

FLAG = "--xla_force_host_platform_device_count"
BYTES = {"pred": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "f64": 8}
NAMES = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
LINE = re.compile(rf"= (.*?) ({NAMES})\((.*)")


@dataclass(frozen=True)
class Collective:
    """ "all_reduce", "all_gather", "reduce_scatter" or "all_to_all" among so many ``ranks``, or a
    "collective_permute", in which each sends one message.

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
        return (1 + (self.name == "all_reduce")) * (self.ranks - 1) / self.ranks * self.bytes


def simulate_devices(count: int) -> Any:
    """Has this process's CPU pass for so many devices, and imports jax, in float64 → the module jax.

    To be called before anything else imports jax: else RuntimeError; ImportError where it is missing.
    """
    check.count("count", count)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}={count}".strip()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        import jax
    except ImportError as error:
        raise ImportError("jax is missing; install it with: pip install jax") from error
    jax.config.update("jax_enable_x64", True)
    if (here := len(jax.devices())) < count:
        raise RuntimeError(f"jax has {here} devices; wanted {count}. It was imported before, so start again")
    return jax


def collectives(compiled: Any, ranks: int) -> list[Collective]:
    """The collectives in ``jax.jit(…).lower(…).compile()`` for a CPU, in the program's order.

    ranks: devices of the program; a collective along one axis of a mesh is among as many as its groups have.
    What XLA has combined into one is one, with the bytes of all parts.
    """
    found = []
    for shapes, name, rest in LINE.findall(compiled.as_text()):
        parts = re.findall(r"(\w+)\[([\d,]*)\]", shapes)  # such as ("f32", "256,784")
        size = sum(BYTES[dtype] * math.prod(map(int, filter(None, n.split(",")))) for dtype, n in parts)
        each = _group(rest, ranks)
        if name == "reduce-scatter":  # it gives a rank's part
            size *= each
        found.append(Collective(name.replace("-", "_"), size, each))
    return found


def _group(line, ranks):
    """Ranks of a group: XLA writes {{0,1},{2,3}}, [2,2]<=[4], or mesh['a'=2,'b'=2] {'a'}; or {}, of all."""
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(found[1])
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return found[1].count(",") + 1
    if found := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", line):
        sizes = dict(re.findall(r"('\w+')=(\d+)", found[1]))
        return math.prod(int(sizes[axis]) for axis in found[2].split(","))
    return ranks
