"""Trains a small GPT on tiny Shakespeare over several processes: one script for laptop, notebook,
cluster.

    python -m ed_lib.parallel.train --ranks 2
    torchrun --standalone --nproc-per-node 2 -m ed_lib.parallel.train --ranks 2 --stage 3
    launch(train.train, 2)    # in a notebook

Whichever starts it, the weights are the same, to the last bit. The options are :func:`train`'s.
"""

import argparse
import hashlib
import inspect
import os
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from ed_lib import check, data, timing
from ed_lib.models import GPT
from ed_lib.parallel import checkpoints, launch, zero
from ed_lib.parallel.launcher import DAY, device
from ed_lib.parallel.replica import Replica, local_rows

# Four buckets, of which three can be summed while the backward pass still computes.
SMALL_BUCKET = 2**18
LENGTH = 64  # characters in a sequence


def train(
    stage: int | str | None = None,
    steps: int = 20,
    batch: int = 16,
    rate: float = 1e-3,
    folder: str = "",
) -> dict:
    """Trains a GPT with Adam, on each rank its part of every batch → a dict, with equal losses and
    weights.

    stage: None, as :class:`Replica`; or of ZeRO. batch: sequences, of all ranks. folder: of a
    stage's checkpoints; it goes on from the newest, and leaves one of its last step. "loss": the
    mean of each step; "seconds": the median step's; "sha256": of the weights. Of a stage also
    "held", this rank's bytes at the last step; "peak", the most, seen whenever a gradient arrived;
    "sent", what it has sent.
    """
    check.count("steps", steps)
    check.count("batch", batch)
    check.positive("rate", rate)
    text = data.text()
    losses = []
    seconds = []
    net = GPT(len(text.characters), LENGTH).to(device())
    adam: Any = partial(torch.optim.Adam, lr=rate)
    if stage is None:
        model: Any = Replica(net, SMALL_BUCKET)
        optimizer = adam(net.parameters())
    else:
        model = zero.shard(net, adam, stage, list(net.blocks))
    done = checkpoints.whole(folder) if folder else []
    # The step is the place in the data, and no random number is drawn: any number of ranks goes on.
    first = checkpoints.load(model, done[-1], new_draws=True) if done else 0
    for rows in islice(data.stretches(text.train, batch, LENGTH, seed=0), first, steps):
        start = timing.now()
        # (T, B) → (b, T): this rank's rows of the batch
        x, wanted = (local_rows(each.T.contiguous()).to(device()) for each in rows)
        scores = model(x).flatten(0, 1)
        # A sum: ranks may have unlike numbers of rows, and all rows count the same.
        loss = F.cross_entropy(scores, wanted.flatten(), reduction="sum")
        loss.backward()
        if stage is None:
            model.finish(batch * LENGTH)
            optimizer.step()
            model.zero_grad()
        else:
            model.step(batch * LENGTH)
        losses.append(loss.item())
        seconds.append(timing.now() - start)
    if folder and first < steps:
        checkpoints.save(model, folder, steps)
    total = torch.tensor(losses, device=device()) / (batch * LENGTH)
    dist.all_reduce(total)
    found = {"loss": total.tolist(), "seconds": statistics.median(seconds or [0.0])}
    if stage is not None:
        found |= {"held": model.full, "peak": model.peak, "sent": model.wire.traffic}
        # Every rank hashes all weights, of which it may have a part.
        for unit in model.units:
            model.gather(unit)
    flat = parameters_to_vector(net.parameters()).detach().cpu()
    return found | {"sha256": hashlib.sha256(flat.numpy().tobytes()).hexdigest()}


def report(results: Sequence[dict]) -> None:
    """Prints what the ranks found, and whether all of them ended with the same weights."""
    print("loss:", *(f"{loss:.4f}" for loss in results[0]["loss"]))
    for rank, result in enumerate(results):
        if "held" in result:
            held = ", ".join(f"{what} {n:,}" for what, n in result["held"].items())
            print(f"rank {rank} holds", held)
    print("weights:", *sorted({result["sha256"] for result in results}))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m ed_lib.parallel.train", description=train.__doc__
    )
    parser.add_argument(
        "--ranks", type=int, default=1, help="processes in all, on all machines together"
    )
    parser.add_argument("--backend", default="gloo", help="nccl: one GPU for each rank")
    for option in inspect.signature(train).parameters.values():
        kind = int if option.default is None else type(option.default)
        parser.add_argument(f"--{option.name}", type=kind, default=option.default)
    options = vars(parser.parse_args())
    ranks = options.pop("ranks")
    backend = options.pop("backend")
    # Where it must be downloaded, before the ranks read it.
    data.text()
    results = launch(partial(train, **options), ranks, backend=backend, timeout=DAY)
    # torchrun runs main in every process.
    if os.environ.get("RANK", "0") == "0":
        report(results)


if __name__ == "__main__":
    main()
