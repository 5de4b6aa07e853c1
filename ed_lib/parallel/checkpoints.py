"""A sharded training state on disk: each rank writes its parts, and a crash at any moment loses
nothing.

A checkpoint is a folder ``step-N``: a file for each rank, and a manifest with the SHA-256 of each.
It is written under another name, brought to the disk, and renamed at last, which a file system does
at once or not at all. So every ``step-N`` is whole. It has all that training goes on from: weights,
what is not trained, and the optimizer's state and options. (Not the states of random generators,
nor how far the data have been read.)
"""

import hashlib
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from ed_lib import check
from ed_lib.parallel import collectives
from ed_lib.parallel.zero import Stage0

MANIFEST, UNFINISHED = "manifest.json", ".unfinished"


class CheckpointError(ValueError):
    """A checkpoint that is not what was written, or is of another model: names the file or the
    tensor.
    """


def save(sharded: Stage0, folder: Path | str, step: int) -> Path:
    """Writes the whole state as ``folder/step-N`` → its path. All ranks call it, and have rank 0's
    buffers from then on. ValueError if there is one of this step already.
    """
    step = check.count("step", step, least=0)
    place, rank, group = Path(folder) / f"step-{step}", sharded.wire.rank, sharded.group
    collectives.agree(f"save(step {step}) beside {[path.name for path in whole(folder)]}", group)
    if place.exists():
        raise ValueError(f"step is {step}, of which {folder} has a checkpoint; wanted another")
    unfinished = place.with_name(place.name + UNFINISHED)
    if rank == 0:
        for left in place.parent.glob(f"*{UNFINISHED}"):  # by a crash
            shutil.rmtree(left)
        unfinished.mkdir(parents=True)
    dist.barrier(group)
    for tensor in sharded.untrained().values():  # running means differ by rank
        collectives.copy_from_0(tensor, group)
    buffer = io.BytesIO()
    torch.save(content(sharded, place.name), buffer)
    write(unfinished / f"rank-{rank}.pt", buffer.getvalue())
    hashes = collectives.gathered(hashlib.sha256(buffer.getvalue()).hexdigest(), group)
    if rank == 0:
        write(unfinished / MANIFEST, json.dumps(hashes, indent=1).encode())
        publish(unfinished, place)
    dist.barrier(group)
    return place


def write(path: Path, content: bytes) -> None:
    """Brings bytes to the disk: without fsync they may still be in memory when the machine
    fails.
    """
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def publish(unfinished: Path, place: Path) -> None:
    """Gives a folder whose files are on the disk its name: at once, or not at all."""
    bring_to_the_disk(unfinished)
    unfinished.rename(place)
    bring_to_the_disk(place.parent)


def bring_to_the_disk(folder: Path) -> None:
    """The names in a folder, which are not there when their files are."""
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def content(sharded: Stage0, name: str) -> dict[str, Any]:
    """What a rank writes: its part of every vector, and all that every rank has."""
    rank, size, optimizer = sharded.wire.rank, sharded.wire.size, sharded.optimizer.state_dict()

    def part(value):  # of a unit's weights or moments (n,); a number, as Adam's step, stays
        if not isinstance(value, torch.Tensor) or not value.dim():
            return value
        return (value if sharded.is_sharded else value.tensor_split(size)[rank]).clone()

    return {
        "layout": {"the file": f"rank {rank} of {size} in {name}"} | layout(sharded),
        "untrained": sharded.untrained(),
        "options": optimizer["param_groups"],
        "parts": tree_map(part, [[unit.kept for unit in sharded.units], optimizer["state"]]),
    }


def layout(sharded: Stage0) -> dict[str, str]:
    """What a model must share with a checkpoint: {name: what it is} of each tensor, and the
    optimizer.
    """
    names = {id(unit.kept): unit.name for unit in sharded.units}
    units = [[names[id(p)] for p in group["params"]] for group in sharded.optimizer.param_groups]
    return sharded.layout() | {"the optimizer": f"{type(sharded.optimizer).__name__} of {units}"}


def whole(folder: Path | str) -> list[Path]:
    """The checkpoints in a folder, the oldest first."""
    found = (path for path in Path(folder).glob("step-*") if re.fullmatch(r"step-\d+", path.name))
    return sorted(found, key=lambda path: int(path.name[5:]))


def load(sharded: Stage0, place: Path | str) -> int:
    """Reads a checkpoint, of any number of ranks and any stage → its step. All ranks call it.

    Everything is checked on every rank before anything is changed on one; if not:
    :class:`CheckpointError`.
    """
    problem, files, place = "", [], Path(place)
    try:
        files = read_all(place, layout(sharded))
    except Exception as error:  # whatever it is that stands there, all ranks are told
        problem = f"{place}: {error}"
    if problems := list(filter(None, collectives.gathered(problem, sharded.group))):
        raise CheckpointError(problems[0])

    def joined(first, *others):  # all ranks' parts of a vector (n,), cut anew
        if not isinstance(first, torch.Tensor) or not first.dim():
            return first
        vector = torch.cat([first, *others])
        return (
            vector.tensor_split(sharded.wire.size)[sharded.wire.rank]
            if sharded.is_sharded
            else vector
        )

    sharded.zero_grad()
    weights, state = tree_map(joined, *(file["parts"] for file in files))
    for unit, value in zip(sharded.units, weights, strict=True):
        unit.kept.copy_(value)
    for name, tensor in sharded.untrained().items():
        tensor.copy_(files[0]["untrained"][name])
    sharded.optimizer.load_state_dict({"state": state, "param_groups": files[0]["options"]})
    sharded.spread()
    return int(place.name[5:])


def read_all(place: Path, wanted: dict[str, str]) -> list[dict[str, Any]]:
    """What all ranks wrote, if it is as it was written, here, and of a model that is as
    ``wanted``.
    """
    hashes, files = json.loads((place / MANIFEST).read_text()), []
    for rank, wanted_hash in enumerate(hashes):
        content = (place / f"rank-{rank}.pt").read_bytes()
        if (found := hashlib.sha256(content).hexdigest()) != wanted_hash:
            said = (
                f"rank-{rank}.pt is not as it was written, {len(content)} bytes of SHA-256 {found}"
            )
            raise CheckpointError(f"{said}; wanted {wanted_hash}")
        files.append(torch.load(io.BytesIO(content), "cpu", weights_only=True))
        written = files[-1]["layout"]
        wanted = wanted | {"the file": f"rank {rank} of {len(hashes)} in {place.name}"}
        for name in written | wanted:
            there, here = (of.get(name, "nothing") for of in (written, wanted))
            if there != here:
                raise CheckpointError(f"{name} is {there}; wanted {here}")
    return files
