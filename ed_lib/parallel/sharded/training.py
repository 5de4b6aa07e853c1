"""Trains a small GPT on tiny Shakespeare over several processes, sharded: one script for everywhere.

    python -m ed_lib.parallel.sharded.training --ranks 2 --stage 3
    torchrun --standalone --nproc-per-node 2 -m ed_lib.parallel.sharded.training --ranks 2 --stage 3
    launch(training.train, 2, 3)    # in a notebook

All three give the same weights, to the last bit, whatever the stage. The options are those of :func:`train`.
"""

import argparse
import hashlib
import os
import statistics
from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ed_lib import check, data, timing
from ed_lib.parallel import launch
from ed_lib.parallel.data_parallel.replica import shard as rows_of
from ed_lib.parallel.ranks.launcher import local_rank
from ed_lib.parallel.sharded import STAGES, checkpoints, shard
from ed_lib.parallel.sharded.transformer import GPT
from ed_lib.parallel.sharded.zero import Stage0

LENGTH = 64  # characters in a sequence


def train(
    stage: int | str = 3, steps: int = 20, batch: int = 16, rate: float = 1e-3, folder: str = ""
) -> dict:
    """What each rank does: trains on its rows of every batch → a dict, with equal losses and weights.

    folder: where checkpoints lie; it goes on from the newest, and leaves one of its last step there. "loss":
    the mean of each step; "seconds": the median step's; "held": the bytes that this rank held when the
    optimizer took its last step; "peak": the most, seen whenever a gradient arrived; "sent": what it has
    sent; "sha256": of the weights.
    """
    check.count("steps", steps), check.count("batch", batch), check.positive("rate", rate)
    text = load()
    net = GPT(len(text.characters), LENGTH)
    adam = partial(torch.optim.Adam, lr=rate)
    sharded = shard(net, adam, stage, list(net.blocks))
    done = checkpoints.whole(folder) if folder else []
    first = checkpoints.load(sharded, done[-1]) if done else 0
    losses, seconds = [], []
    for n, (x, wanted) in zip(range(steps), data.stretches(text.train, batch, LENGTH, seed=0), strict=False):
        if n >= first:
            start = timing.now()
            x, wanted = (rows_of(rows.T.contiguous()) for rows in (x, wanted))  # (T, B) → (b, T)
            loss = F.cross_entropy(sharded(x).flatten(0, 1), wanted.flatten(), reduction="sum")
            loss.backward()
            sharded.step(batch * LENGTH)
            losses.append(loss.detach())
            seconds.append(timing.now() - start)
    if folder and first < steps:
        checkpoints.save(sharded, folder, steps)
    total = torch.stack(losses) if losses else torch.zeros(0)
    dist.all_reduce(total)
    return {
        "loss": (total / (batch * LENGTH)).tolist(),
        "seconds": statistics.median(seconds or [0.0]),
        "held": sharded.full,
        "peak": sharded.peak,
        "sent": sharded.wire.traffic,
        "sha256": sha256(sharded),
    }


def by_stage(steps: int) -> dict:
    """{stage: what :func:`train` found}, for all of them."""
    return {stage: train(stage, steps) for stage in STAGES}


def load() -> data.Text:
    """Tiny Shakespeare. One rank of each machine loads it first, so that a download happens once."""
    if local_rank() != 0:
        dist.barrier()
    text = data.text()
    if local_rank() == 0:
        dist.barrier()
    return text


def sha256(sharded: Stage0) -> str:
    """The SHA-256 of all weights' bytes, unit by unit, in hexadecimal."""
    digest = hashlib.sha256()
    for unit in sharded.units:
        parts: list = [None] * sharded.wire.size
        dist.all_gather_object(
            parts, unit.part(unit.kept, sharded.wire) if len(unit.kept) == unit.size else unit.kept
        )
        digest.update(torch.cat(parts).numpy().tobytes())
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> None:
    prog, description = "python -m ed_lib.parallel.sharded.training", __doc__.split(":")[0]
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--ranks", type=int, default=1, help="processes in all, on all machines together")
    parser.add_argument("--stage", default="3", choices=list(map(str, STAGES)), help="of ZeRO")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="sequences in a step, of all ranks together")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--folder", default="", help="of checkpoints, to go on from and to write")
    o = parser.parse_args(arguments)
    stage = int(o.stage) if o.stage.isdigit() else o.stage
    results = launch(train, o.ranks, stage, o.steps, o.batch, o.rate, o.folder, timeout=24 * 3600.0)
    if os.environ.get("RANK", "0") == "0":  # torchrun runs main in every process
        print("loss:", *(f"{loss:.4f}" for loss in results[0]["loss"]))
        for rank, result in enumerate(results):
            print(f"rank {rank} holds", ", ".join(f"{what} {n:,}" for what, n in result["held"].items()))
        print("weights:", *sorted({result["sha256"] for result in results}))


if __name__ == "__main__":
    main()
