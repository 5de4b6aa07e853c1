"""A sharded training state on disk: each rank writes its parts, and a crash at any moment loses nothing.

A checkpoint is a folder ``step-N``: a file for each rank, and a manifest of their lengths and SHA-256. It is
written under another name, brought to the disk, and renamed at last, which a file system does at once or not
at all. So every ``step-N`` is whole. It has all that training goes on from: weights, what is not trained, and
the optimizer's state and options. (Not the states of random generators, nor how far the data have been read.)
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

from ed_lib import check
from ed_lib.parallel import collectives
from ed_lib.parallel.zero import Stage0

MANIFEST, UNFINISHED = "manifest.json", ".unfinished"


class CheckpointError(ValueError):
    """A checkpoint that is not what was written, or is of another model: names the file or the tensor."""


def save(sharded: Stage0, folder: Path | str, step: int, keep: int = 2) -> Path:
    """Writes the whole state as ``folder/step-N`` → its path. All ranks call it, and have rank 0's buffers
    from then on. The newest ``keep`` checkpoints are left. ValueError if there is one of this step already.
    """
    step, keep = check.count("step", step, least=0), check.count("keep", keep)
    place, there, rank = Path(folder) / f"step-{step}", whole(folder), sharded.wire.rank
    sharded.agree(f"save(step {step}, keep {keep}) beside {[path.name for path in there]}")
    if place in there:
        raise ValueError(f"step is {step}, of which {folder} has a checkpoint; wanted another")
    unfinished = place.with_name(place.name + UNFINISHED)
    if rank == 0:
        for left in place.parent.glob(f"*{UNFINISHED}"):  # by a crash
            shutil.rmtree(left)
        unfinished.mkdir(parents=True)
    dist.barrier(sharded.group)
    for tensor in sharded.untrained().values():  # running means differ by rank
        collectives.copy_from_0(tensor, sharded.group)
    mine = write(unfinished / f"rank-{rank}.pt", content(sharded, step))
    files = gathered(sharded, mine)
    if rank == 0:
        publish(unfinished, place, {"files": files})
        for old in there[: max(0, len(there) + 1 - keep)]:
            shutil.rmtree(old.rename(f"{old}{UNFINISHED}"))  # half of it is no checkpoint
    dist.barrier(sharded.group)
    return place


def content(sharded: Stage0, step: int) -> dict[str, Any]:
    """What a rank writes: its part of every vector, and all that every rank has."""
    parts: dict[str, dict[str, Any]] = {unit.name: {} for unit in sharded.units}
    for unit in sharded.units:
        for what, value in {"weights": unit.kept, **sharded.optimizer.state[unit.kept]}.items():
            is_whole = isinstance(value, torch.Tensor) and value.dim() and len(value) == unit.size
            parts[unit.name][what] = unit.part(value, sharded.wire).clone() if is_whole else value
    shared = {"layout": described(sharded), "untrained": sharded.untrained(), "groups": groups(sharded)}
    return {"step": step, "rank": (sharded.wire.rank, sharded.wire.size), "parts": parts} | shared


def described(sharded: Stage0) -> dict[str, str]:
    """What a model must share with a checkpoint: {name: what it is} of each tensor, and the optimizer."""
    units = [group["params"] for group in groups(sharded)]
    return sharded.layout() | {"the optimizer": f"{type(sharded.optimizer).__name__} of {units}"}


def groups(sharded: Stage0) -> list[dict[str, Any]]:
    """The optimizer's options, as its ``param_groups``, with the names of units for parameters."""
    names = {id(unit.kept): unit.name for unit in sharded.units}
    found = sharded.optimizer.param_groups
    return [group | {"params": [names[id(p)] for p in group["params"]]} for group in found]


def write(path: Path, content: dict) -> dict:
    """Brings tensors to the disk → what the manifest says of the file: its bytes and SHA-256."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with path.open("xb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(buffer.getbuffer()), "sha256": hashlib.sha256(buffer.getbuffer()).hexdigest()}


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
    problem, files = "", []
    try:
        files = read(Path(place), described(sharded))
    except Exception as error:  # whatever it is that stands there, all ranks are told
        problem = f"{place}: {error}"
    if problems := list(filter(None, gathered(sharded, problem))):
        raise CheckpointError(problems[0])
    sharded.zero_grad()
    state: dict[str, dict[str, Any]] = {}
    for unit in sharded.units:
        state[unit.name] = {}
        for what, value in files[0]["parts"][unit.name].items():
            if isinstance(value, torch.Tensor) and value.dim():  # a vector's parts, to be cut anew
                value = torch.cat([file["parts"][unit.name][what] for file in files])  # (n,)
                value = value if len(unit.kept) == unit.size else unit.part(value, sharded.wire)
            state[unit.name][what] = value
        unit.kept.copy_(state[unit.name].pop("weights"))
    for name, tensor in sharded.untrained().items():
        tensor.copy_(files[0]["untrained"][name])
    names = [name for group in files[0]["groups"] for name in group["params"]]
    numbered = {n: state[name] for n, name in enumerate(names) if state[name]}
    options = [g | {"params": [names.index(name) for name in g["params"]]} for g in files[0]["groups"]]
    sharded.optimizer.load_state_dict({"state": numbered, "param_groups": options})
    sharded.spread()
    return files[0]["step"]


def read(place: Path, wanted: dict[str, str]) -> list[dict[str, Any]]:
    """What all ranks wrote, if it is as it was written, and of a model that is as ``wanted``."""
    entries = json.loads((place / MANIFEST).read_text())["files"]
    files = [opened(place / f"rank-{rank}.pt", entry) for rank, entry in enumerate(entries)]
    for rank, file in enumerate(files):
        if file["rank"] != (rank, len(files)) or f"step-{file['step']}" != place.name:
            said = f"rank-{rank}.pt is of rank {file['rank'][0]} of {file['rank'][1]} in step {file['step']}"
            raise CheckpointError(f"{said}; wanted rank {rank} of {len(files)}")
    written = files[0]["layout"]
    for name in written | wanted:
        there, here = (of.get(name, "nothing") for of in (written, wanted))
        if there != here:
            raise CheckpointError(f"{name} is {there}; the model's is {here}")
    return files


def opened(path: Path, entry: dict) -> dict[str, Any]:
    """A rank's file, if it is as it was written."""
    content = path.read_bytes()
    if len(content) != entry["bytes"]:
        raise CheckpointError(f"{path.name} has {len(content)} bytes; wanted {entry['bytes']}")
    if (found := hashlib.sha256(content).hexdigest()) != entry["sha256"]:
        raise CheckpointError(f"{path.name} was altered: SHA-256 {found}; wanted {entry['sha256']}")
    return torch.load(io.BytesIO(content), weights_only=True)


def gathered(sharded: Stage0, mine: Any) -> list[Any]:
    """What each rank has, by rank."""
    found: list[Any] = [None] * sharded.wire.size
    dist.all_gather_object(found, mine, sharded.group)
    return found
