"""A sharded training state on disk: each rank writes its parts, and a crash at any moment loses nothing.

A checkpoint is a folder ``step-N``: a file for each rank, and a manifest of their lengths and SHA-256. It is
written under another name, brought to the disk, and renamed at last, which a file system does at once or not
at all. So every ``step-N`` is whole.
"""

import hashlib
import io
import json
import os
import re
import shutil
from pathlib import Path

import torch
import torch.distributed as dist

from ed_lib import check
from ed_lib.parallel.sharded.zero import Stage0

MANIFEST, UNFINISHED = "manifest.json", ".unfinished"


class CheckpointError(ValueError):
    """A checkpoint that is not what was written, or is of another model: names the file and the tensor."""


def save(sharded: Stage0, folder: Path | str, step: int, keep: int = 2) -> Path:
    """Writes the weights and the optimizer's state as ``folder/step-N`` → its path. All ranks call it.

    Afterwards the newest ``keep`` checkpoints are left. ValueError if there is one of this step already.
    """
    step, keep = check.count("step", step, least=0), check.count("keep", keep)
    folder = Path(folder)
    place = folder / f"step-{step}"
    there = whole(folder)
    sharded.agree(f"save(step {step}, keep {keep}) beside {[path.name for path in there]}")
    if place in there:
        raise ValueError(f"step is {step}, of which {folder} has a checkpoint; wanted another")
    unfinished = folder / f"{place.name}{UNFINISHED}"
    if sharded.wire.rank == 0:
        for left in folder.glob(f"*{UNFINISHED}"):  # by a crash
            shutil.rmtree(left)
        unfinished.mkdir(parents=True)
    dist.barrier(sharded.group)
    mine = write(unfinished / f"rank-{sharded.wire.rank}.pt", parts(sharded))
    files: list = [None] * sharded.wire.size
    dist.all_gather_object(files, mine, sharded.group)
    if sharded.wire.rank == 0:
        publish(unfinished, place, {"step": step, "units": layout(sharded), "files": files})
        for old in there[: max(0, len(there) + 1 - keep)]:
            shutil.rmtree(old.rename(f"{old}{UNFINISHED}"))  # half of it is no checkpoint
    dist.barrier(sharded.group)
    return place


def write(path: Path, content: dict) -> dict:
    """Brings tensors to the disk → what the manifest says of the file: its name, bytes and SHA-256."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with path.open("xb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    return {"file": path.name, "bytes": buffer.getbuffer().nbytes, "sha256": digest}


def publish(unfinished: Path, place: Path, manifest: dict) -> None:
    """Gives a folder whose files are on the disk its manifest, and its name."""
    with (unfinished / MANIFEST).open("x") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    bring_to_the_disk(unfinished)
    unfinished.rename(place)
    bring_to_the_disk(place.parent)


def bring_to_the_disk(folder: Path) -> None:
    """The names in a folder, which are not there when their files are."""
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def whole(folder: Path | str) -> list[Path]:
    """The checkpoints in a folder, the oldest first."""
    found = (path for path in Path(folder).glob("step-*") if re.fullmatch(r"step-\d+", path.name))
    return sorted(found, key=lambda path: int(path.name[5:]))


def load(sharded: Stage0, place: Path | str) -> int:
    """Reads a checkpoint, of any number of ranks and any stage → its step. All ranks call it.

    Everything is checked on every rank before anything is changed on one; if not: :class:`CheckpointError`.
    """
    problem, step = "", -1
    found: dict[str, dict[str, torch.Tensor]] = {}
    try:
        step, found = read(Path(place), sharded)
    except (ValueError, KeyError, TypeError, OSError) as error:  # of a manifest that was altered, too
        problem = f"{place}: {error}"
    problems: list = [None] * sharded.wire.size
    dist.all_gather_object(problems, problem, sharded.group)
    if any(problems):
        raise CheckpointError(next(filter(None, problems)))
    state = sharded.optimizer.state_dict()
    for n, unit in enumerate(sharded.units):
        unit.kept.copy_(found[unit.name].pop("weights"))
        state["state"][n] = found[unit.name]
    sharded.optimizer.load_state_dict(state)
    sharded.spread()
    return step


def read(place: Path, sharded: Stage0) -> tuple[int, dict[str, dict[str, torch.Tensor]]]:
    """The step of a checkpoint, and {unit: {what: what this rank keeps of it}}."""
    manifest = json.loads((place / MANIFEST).read_text())
    mine, written = layout(sharded), manifest["units"]
    for name in mine | written:
        there, here = (of.get(name, "no such unit") for of in (written, mine))
        if there != here:
            raise CheckpointError(f"the unit {name!r} has {there}; the model's has {here}")
    files = [opened(place / entry["file"], entry) for entry in manifest["files"]]
    found: dict[str, dict[str, torch.Tensor]] = {unit.name: {} for unit in sharded.units}
    for unit in sharded.units:
        for what, first in files[0][unit.name].items():
            if first.dim():  # a vector's parts; else a number that all ranks have
                first = torch.cat([file[unit.name][what] for file in files])
                first = first if len(unit.kept) == unit.size else unit.part(first, sharded.wire)
            found[unit.name][what] = first
    return manifest["step"], found


def opened(path: Path, entry: dict) -> dict[str, dict[str, torch.Tensor]]:
    """A rank's file, if it is as it was written."""
    content = path.read_bytes()
    if len(content) != entry["bytes"]:
        raise CheckpointError(f"{path.name} has {len(content)} bytes; wanted {entry['bytes']}")
    if (found := hashlib.sha256(content).hexdigest()) != entry["sha256"]:
        raise CheckpointError(f"{path.name} was altered: SHA-256 {found}; wanted {entry['sha256']}")
    return torch.load(io.BytesIO(content), weights_only=True)


def layout(sharded: Stage0) -> dict[str, str]:
    """{unit: its numbers, their dtype, and which optimizer updates them}."""
    kind = type(sharded.optimizer).__name__
    return {unit.name: f"{unit.size} of {unit.weights.dtype} by {kind}" for unit in sharded.units}


def parts(sharded: Stage0) -> dict[str, dict[str, torch.Tensor]]:
    """{unit: {what: this rank's part}} of the weights and of the optimizer's state, numbers as they are."""
    found: dict[str, dict[str, torch.Tensor]] = {unit.name: {} for unit in sharded.units}
    for unit in sharded.units:
        for what, tensor in {"weights": unit.kept, **sharded.optimizer.state[unit.kept]}.items():
            is_whole = tensor.dim() and len(tensor) == unit.size
            part = unit.part(tensor, sharded.wire) if is_whole else tensor
            found[unit.name][what] = part.detach().clone()
    return found
