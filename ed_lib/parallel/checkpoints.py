"""A sharded training state on disk: each rank writes its parts, and a crash at any moment loses
nothing.

A checkpoint is a folder ``step-N``: a file for each rank, and a manifest with the SHA-256 of each.
It is written under another name, brought to the disk, and renamed at last, which a file system does
at once or not at all. So every ``step-N`` is whole. It has all that training goes on from: weights,
what is not trained, the optimizer's state and options, every rank's random states, and the place in
the data. So a run that goes on from it is the run without a break, to the last bit.
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
from ed_lib.parallel import collectives, random_states
from ed_lib.parallel.checkpoint_checks import (
    OLD,
    WRITTEN,
    CheckpointError,
    check_place,
    check_random_states,
    compare,
)
from ed_lib.parallel.sampler import Sampler
from ed_lib.parallel.zero import Stage0

MANIFEST = "manifest.json"
NAME = "step-"  # and the step's number
UNFINISHED = ".unfinished"


def save(sharded: Stage0, folder: Path | str, step: int, sampler: Sampler | None = None) -> Path:
    """Writes the whole state as ``folder/step-N`` → its path. All ranks call it, and have rank 0's
    buffers from then on. ValueError if there is one of this step already, or if the ranks'
    samplers are not at one place.
    """
    step = check.count("step", step, least=0)
    place = Path(folder) / f"{NAME}{step}"
    unfinished = place.with_name(place.name + UNFINISHED)
    rank = sharded.wire.rank
    group = sharded.group
    there = [path.name for path in whole(folder)]
    place_in_data = sampler.state_dict() if sampler else None
    collectives.agree(f"save(step {step}, {place_in_data}) beside {there}", group)
    if place.exists():
        raise ValueError(f"step is {step}, of which {folder} has a checkpoint; wanted another")
    if rank == 0:
        make_empty(unfinished)
    # nobody writes before the folder is there
    dist.barrier(group)
    # running means differ by rank, and a checkpoint has one of each
    for tensor in sharded.untrained().values():
        collectives.copy_from_0(tensor, group)
    buffer = io.BytesIO()
    rest = {"random states": random_states.states(), "place in the data": place_in_data}
    torch.save(content(sharded, place.name) | rest, buffer)
    mine = buffer.getvalue()
    write(unfinished / f"rank-{rank}.pt", mine)
    # once all ranks have sent their hash, all files are on the disk
    hashes = collectives.gathered(sha256(mine), group)
    if rank == 0:
        write(unfinished / MANIFEST, json.dumps(hashes, indent=1).encode())
        publish(unfinished, place)
    # who returns can load it
    dist.barrier(group)
    return place


def make_empty(unfinished: Path) -> None:
    """A new folder to write into; what crashes have left beside it is removed."""
    for left in unfinished.parent.glob(f"{NAME}*{UNFINISHED}"):
        shutil.rmtree(left)
    new = [folder for folder in unfinished.parents if not folder.exists()]
    unfinished.mkdir(parents=True)
    # a checkpoint is lost with the folder that holds it, whose name is in the one above
    for folder in new:
        bring_to_the_disk(folder.parent)


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
    """Writes a folder's list of names to the disk: that a file is there does not write its name."""
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def content(sharded: Stage0, name: str) -> dict[str, Any]:
    """What a rank writes of the model: its part of every vector, and all that every rank has."""
    rank = sharded.wire.rank
    size = sharded.wire.size
    optimizer = sharded.optimizer.state_dict()

    def part(value: Any) -> Any:
        """Of a unit's weights or moments (n,) this rank's part."""
        if not is_vector(value):
            return value
        mine = value if sharded.is_sharded else value.tensor_split(size)[rank]
        # a copy: a view would be written with all of the memory that it lies in
        return mine.clone()

    weights = [unit.kept for unit in sharded.units]
    return {
        "layout": {"the file": f"rank {rank} of {size} in {name}"} | layout(sharded),
        "untrained": sharded.untrained(),
        "options": optimizer["param_groups"],
        "parts": tree_map(part, [weights, optimizer["state"]]),
    }


def is_vector(value: Any) -> bool:
    """Whether it has a number for each of a unit's, as Adam's moments have, and not its step."""
    return isinstance(value, torch.Tensor) and value.dim() > 0


def layout(sharded: Stage0) -> dict[str, str]:
    """What a model must share with a checkpoint: {name: what it is} of each tensor, and the
    optimizer.
    """
    names = {id(unit.kept): unit.name for unit in sharded.units}
    units = [[names[id(p)] for p in group["params"]] for group in sharded.optimizer.param_groups]
    return sharded.layout() | {"the optimizer": f"{type(sharded.optimizer).__name__} of {units}"}


def whole(folder: Path | str) -> list[Path]:
    """The checkpoints in a folder, the oldest first."""
    named = Path(folder).glob(f"{NAME}*")
    return sorted(filter(is_finished, named), key=step_of)


def is_finished(place: Path) -> bool:
    return re.fullmatch(rf"{NAME}\d+", place.name) is not None


def step_of(place: Path) -> int:
    return int(place.name.removeprefix(NAME))


def load(
    sharded: Stage0, place: Path | str, sampler: Sampler | None = None, *, new_draws: bool = False
) -> int:
    """Reads a checkpoint, of any stage → its step. All ranks call it.

    It goes on as if there had been no break, with the random states of as many ranks as wrote it.
    With ``new_draws`` any number of ranks goes on, and they draw new random numbers; a checkpoint
    of an older version, without random states, can be read like that too. ``sampler`` is brought to
    the place in the data.

    Everything is checked on every rank before anything is changed on one; if something is missing
    or spoilt: :class:`CheckpointError`.
    """
    place = Path(place)
    problem = ""
    hashes: list[str] = []
    files: list[dict[str, Any]] = []
    try:
        hashes = read_manifest(place)
        files = read_all(place, hashes, layout(sharded))
        if not new_draws:
            check_random_states(files, sharded.wire.size)
        check_place(files, sampler)
    except Exception as error:  # whatever it is that stands there, all ranks are told
        problem = f"{place}: {error}"
    problems = [each for each in collectives.gathered(problem, sharded.group) if each]
    if problems:
        raise CheckpointError(problems[0])
    # each may be right by itself, and another
    collectives.agree(f"load({place.name}, {new_draws!r}) of {hashes}", sharded.group)
    restore(sharded, files)
    rank = sharded.wire.rank
    if sampler:
        sampler.load_state_dict(files[0]["place in the data"])
    if new_draws:
        # others than at the run's start, whose numbers have been drawn already
        random_states.seed(f"rank {rank} after {hashes}")
    else:
        random_states.restore(files[rank]["random states"])
    return step_of(place)


def restore(sharded: Stage0, files: list[dict[str, Any]]) -> None:
    """Gives this rank what it keeps of all that the ranks of a checkpoint wrote."""
    rank = sharded.wire.rank
    size = sharded.wire.size

    def joined(first: Any, *others: Any) -> Any:
        """All ranks' parts of a vector (n,), cut anew."""
        if not is_vector(first):
            return first
        # of as many ranks as wrote, for as many as there are now
        vector = torch.cat([first, *others])
        return vector.tensor_split(size)[rank] if sharded.is_sharded else vector

    # gradients of the weights that were here are of no use
    sharded.zero_grad()
    # the files are alike, so that a part in one has its others at the same place in the others
    weights, state = tree_map(joined, *(file["parts"] for file in files))
    for unit, value in zip(sharded.units, weights, strict=True):
        unit.kept.copy_(value)
    # every rank wrote these whole, and all the same
    for name, tensor in sharded.untrained().items():
        tensor.copy_(files[0]["untrained"][name])
    sharded.optimizer.load_state_dict({"state": state, "param_groups": files[0]["options"]})
    sharded.spread()


def read_manifest(place: Path) -> list[str]:
    """The SHA-256 of each rank's file."""
    found = json.loads((place / MANIFEST).read_text())
    wanted = "wanted a list of one SHA-256 or more"
    if not isinstance(found, list) or not found:
        raise CheckpointError(f"{MANIFEST} is {found!r}; {wanted}")
    for each in found:
        if not isinstance(each, str):
            raise CheckpointError(f"{MANIFEST} has {each!r}; {wanted}")
    return found


def read_all(place: Path, hashes: list[str], wanted: dict[str, str]) -> list[dict[str, Any]]:
    """What all ranks wrote, if it is as it was written, here, and of a model that is as
    ``wanted``.
    """
    files = []
    for rank, wanted_hash in enumerate(hashes):
        content = (place / f"rank-{rank}.pt").read_bytes()
        found = sha256(content)
        if found != wanted_hash:
            raise CheckpointError(
                f"rank-{rank}.pt is not as it was written, {len(content)} bytes of SHA-256 {found}"
                f"; wanted {wanted_hash}"
            )
        file = torch.load(io.BytesIO(content), "cpu", weights_only=True)
        if not isinstance(file, dict) or file.keys() not in (OLD, WRITTEN):
            raise CheckpointError(f"rank-{rank}.pt holds something else; wanted what save() writes")
        here = {"the file": f"rank {rank} of {len(hashes)} in {place.name}"}
        compare(file["layout"], wanted | here)
        files.append(file)
    return files
