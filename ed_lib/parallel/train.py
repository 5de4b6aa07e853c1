"""Trains LeNet, or a small GPT in shards, over several processes: one script for laptop, notebook, cluster.

    python -m ed_lib.parallel.train lenet --ranks 2
    torchrun --standalone --nproc-per-node 2 -m ed_lib.parallel.train gpt --ranks 2 --stage 3
    launch(training.train, 2)    # in a notebook

All three give the same weights, to the last bit. The options are :func:`train`'s, :func:`train_sharded`'s.
"""

import argparse
import ast
import contextlib
import hashlib
import inspect
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ed_lib import check, data, timing
from ed_lib import training as loops
from ed_lib.models import GPT
from ed_lib.parallel import checkpoints, launch, zero
from ed_lib.parallel.by_hand import LeNet
from ed_lib.parallel.launcher import device, local_rank
from ed_lib.parallel.replica import Replica, accuracy, shard

BUCKET_BYTES = 2**18  # three buckets, of which two can be summed while the backward pass still computes
LENGTH = 64  # characters in a sequence
TIMEOUT = 24 * 3600.0  # seconds


def train(
    batch: int = 256, lr: float = 0.2, epochs: int = 10, images: int | None = None, seed: int = 0,
    offline: bool = False,
) -> dict:  # fmt: skip
    """Trains LeNet, on each rank its shards → a dict, the same on all ranks but for the seconds and samples.

    batch: samples of all ranks in a step. images: how many of the training images to use, None for all.
    "loss": mean over each epoch; "accuracy": on the test images after each epoch; "seconds": of each epoch's
    training; "samples": how many this rank has trained on; "sha256": of the parameters at the end.
    """
    check.count("batch", batch), check.count("epochs", epochs), check.positive("lr", lr)
    found = loaded(lambda: data.load("fashion-mnist", offline=offline))
    x, y = (t.to(device()) for t in data.tensors(found.train_images[:images], found.train_labels[:images]))
    test = [t.to(device()) for t in data.tensors(found.test_images, found.test_labels)]
    replica = Replica(LeNet(seed).to(device()), BUCKET_BYTES)
    optimizer = torch.optim.SGD(replica.module.parameters(), lr)
    mine = []  # how many samples this rank had, step by step

    def step(rows):  # the same on all ranks
        rows_here = shard(rows)
        mine.append(len(rows_here))
        replica.zero_grad()
        loss = F.cross_entropy(replica(x[rows_here]), y[rows_here], reduction="sum")
        loss.backward()  # sums of complete buckets run meanwhile
        replica.finish(len(rows))
        optimizer.step()
        return loss.detach()

    def look():
        return accuracy(replica, *test)

    run = loops.loop(step, len(x), look, epochs=epochs, batch=batch, seed=1000 * seed)
    losses = torch.tensor(run.loss, device=device()).view(epochs, -1).sum(1)
    dist.all_reduce(losses)
    return {
        "loss": (losses / len(x)).tolist(),
        "accuracy": run.accuracy[1:],
        "seconds": run.seconds[1:],
        "samples": sum(mine),
        "sha256": sha256(replica.module.parameters()),
    }


def train_sharded(
    stage: int | str = 3, steps: int = 20, batch: int = 16, rate: float = 1e-3, folder: str = ""
) -> dict:
    """Trains a GPT by a stage of ZeRO, on each rank its rows → a dict, with equal losses and weights.

    folder: of checkpoints; it goes on from the newest, and leaves one of its last step. "loss": the mean of
    each step; "seconds": the median step's; "held": the bytes of this rank at the optimizer's last step;
    "peak": the most, seen whenever a gradient arrived; "sent": what it has sent; "sha256": of the weights.
    """
    check.count("steps", steps), check.count("batch", batch), check.positive("rate", rate)
    text = loaded(data.text)
    net = GPT(len(text.characters), LENGTH)
    sharded: Any = zero.shard(net, partial(torch.optim.Adam, lr=rate), stage, list(net.blocks))
    done = checkpoints.whole(folder) if folder else []
    first = checkpoints.load(sharded, done[-1]) if done else 0
    losses, seconds = [], []
    for n, (x, wanted) in zip(range(steps), data.stretches(text.train, batch, LENGTH, seed=0), strict=False):
        if n >= first:
            start = timing.now()
            x, wanted = (shard(rows.T.contiguous()) for rows in (x, wanted))  # (T, B) → (b, T)
            loss = F.cross_entropy(sharded(x).flatten(0, 1), wanted.flatten(), reduction="sum")
            loss.backward()
            sharded.step(batch * LENGTH)
            losses.append(loss.detach())
            seconds.append(timing.now() - start)
    if folder and first < steps:
        checkpoints.save(sharded, folder, steps)
    total = torch.stack(losses) if losses else torch.zeros(0)
    dist.all_reduce(total)
    sent = sharded.wire.traffic
    for unit in sharded.units:
        if not unit.is_here:
            sharded.gather(unit)
    return {
        "loss": (total / (batch * LENGTH)).tolist(),
        "seconds": statistics.median(seconds or [0.0]),
        "held": sharded.full,
        "peak": sharded.peak,
        "sent": sent,
        "sha256": sha256(unit.weights for unit in sharded.units),
    }


def by_stage(steps: int) -> dict:
    """{stage: what :func:`train_sharded` found}, for all of them."""
    return {stage: train_sharded(stage, steps) for stage in zero.STAGES}


def loaded(load: Callable) -> Any:
    """What ``load()`` gives. One rank of each machine loads it first, so that a download happens once."""
    if local_rank() != 0:
        dist.barrier()
    with contextlib.redirect_stdout(None if local_rank() else sys.stdout):  # rank 0 has said it
        found = load()
    if local_rank() == 0:
        dist.barrier()
    return found


def sha256(tensors: Iterable[torch.Tensor]) -> str:
    """The SHA-256 of all tensors' bytes, in hexadecimal."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def report(results: Sequence[dict]) -> None:
    """Prints what the ranks found, and whether all of them ended with the same weights."""
    first = results[0]
    if "accuracy" in first:
        lines = zip(first["loss"], first["accuracy"], first["seconds"], strict=True)
        for epoch, (loss, right, seconds) in enumerate(lines, start=1):
            print(f"epoch {epoch}: loss {loss:.4f}, test accuracy {right:.4f}, {seconds:.2f} s")
        print("samples by rank:", *(result["samples"] for result in results))
    else:
        print("loss:", *(f"{loss:.4f}" for loss in first["loss"]))
        for rank, result in enumerate(results):
            print(f"rank {rank} holds", ", ".join(f"{what} {n:,}" for what, n in result["held"].items()))
    print("weights:", *sorted({result["sha256"] for result in results}))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ed_lib.parallel.train")
    networks = parser.add_subparsers(required=True)
    functions: dict[str, Callable] = {"lenet": train, "gpt": train_sharded}
    for name, function in functions.items():
        options = networks.add_parser(name, description=function.__doc__)
        options.set_defaults(function=function)
        options.add_argument(
            "--ranks", type=int, default=1, help="processes in all, on all machines together"
        )
        options.add_argument("--backend", default="gloo", help="nccl: one GPU for each rank")
        for option in inspect.signature(function).parameters.values():
            options.add_argument(
                f"--{option.name}", type=value, default=option.default, nargs="?", const=True
            )
    o = vars(parser.parse_args(arguments))
    function, ranks, backend = (o.pop(name) for name in ("function", "ranks", "backend"))
    results = launch(partial(function, **o), ranks, backend=backend, timeout=TIMEOUT)
    if os.environ.get("RANK", "0") == "0":  # torchrun runs main in every process
        report(results)


def value(text: str) -> Any:
    """An option's text as the number that it is, or as it is."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    main()
