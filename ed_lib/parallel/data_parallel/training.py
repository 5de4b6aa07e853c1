"""Trains LeNet on Fashion-MNIST over several processes: one script for a laptop, a notebook and a cluster.

    python -m ed_lib.parallel.data_parallel.training --ranks 2
    torchrun --standalone --nproc-per-node 2 -m ed_lib.parallel.data_parallel.training --ranks 2
    launch(train.train, 2)    # in a notebook

All three give the same weights, to the last bit. The options are those of :func:`train`.
"""

import argparse
import contextlib
import hashlib
import os
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ed_lib import check, data, training
from ed_lib.parallel import launch
from ed_lib.parallel.data_parallel.by_hand import LeNet
from ed_lib.parallel.data_parallel.replica import Replica, accuracy, shard
from ed_lib.parallel.ranks.launcher import BACKENDS, device, local_rank

BUCKET_BYTES = 2**18  # three buckets, of which two can be summed while the backward pass still computes
TIMEOUT = 24 * 3600.0  # seconds


def train(
    batch: int = 256,
    lr: float = 0.2,
    epochs: int = 10,
    images: int | None = None,
    seed: int = 0,
    offline: bool = False,
) -> dict:
    """What each rank does: trains on its shards → a dict, the same on all ranks but for the seconds.

    batch: samples of all ranks in a step. images: how many of the training images to use, None for all.
    "loss": mean over each epoch; "accuracy": on the test images after each epoch; "seconds": of each epoch's
    training; "samples": how many this rank has trained on; "sha256": of the parameters at the end.
    """
    batch, epochs = check.count("batch", batch), check.count("epochs", epochs)
    lr = check.positive("lr", lr)
    found = load(offline)
    x, y = (t.to(device()) for t in data.tensors(found.train_images[:images], found.train_labels[:images]))
    test = [t.to(device()) for t in data.tensors(found.test_images, found.test_labels)]
    replica = Replica(LeNet(seed).to(device()), BUCKET_BYTES)
    optimizer = torch.optim.SGD(replica.module.parameters(), lr)
    mine = []  # how many samples this rank had, step by step

    def one_step(rows):  # the same on all ranks
        rows_here = shard(rows)
        mine.append(len(rows_here))
        return step(replica, optimizer, x[rows_here], y[rows_here], len(rows))

    def look():
        return accuracy(replica, *test)

    run = training.loop(one_step, len(x), look, epochs=epochs, batch=batch, seed=1000 * seed)
    losses = torch.tensor(run.loss, device=device()).view(epochs, -1).sum(1)
    dist.all_reduce(losses)
    return {
        "loss": (losses / len(x)).tolist(),
        "accuracy": run.accuracy[1:],
        "seconds": run.seconds[1:],
        "samples": sum(mine),
        "sha256": sha256(replica.module.parameters()),
    }


def step(
    replica: Replica, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, samples: int
) -> torch.Tensor:
    """One step on this rank's shard, x (b, …) and y (b,), of a batch of ``samples`` → its summed loss."""
    replica.zero_grad()
    loss = F.cross_entropy(replica(x), y, reduction="sum")
    loss.backward()  # sums of complete buckets run meanwhile
    replica.finish(samples)
    optimizer.step()
    return loss.detach()


def load(offline: bool) -> data.Dataset:
    """Fashion-MNIST. One rank of each machine loads it first, so that a download happens once."""
    if local_rank() == 0:
        found = data.load("fashion-mnist", offline=offline)
    dist.barrier()
    if local_rank() != 0:
        with contextlib.redirect_stdout(None):  # rank 0 has said it
            found = data.load("fashion-mnist", offline=offline)
    return found


def sha256(parameters: Iterable[torch.Tensor]) -> str:
    """The SHA-256 of all parameters' bytes, in hexadecimal."""
    digest = hashlib.sha256()
    for p in parameters:
        digest.update(p.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> None:
    prog, description = "python -m ed_lib.parallel.data_parallel.training", __doc__.split(":")[0]
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--ranks", type=int, default=1, help="processes in all, on all machines together")
    parser.add_argument("--backend", choices=BACKENDS, default="gloo", help="nccl: one GPU for each rank")
    parser.add_argument("--batch", type=int, default=256, help="images in a step, of all ranks together")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--images", type=int, help="only the first so many training images")
    parser.add_argument("--offline", action="store_true", help="scikit-learn's digits, without network")
    o = parser.parse_args(arguments)
    options = o.batch, o.lr, o.epochs, o.images, 0, o.offline
    results = launch(train, o.ranks, *options, backend=o.backend, timeout=TIMEOUT)
    if os.environ.get("RANK", "0") == "0":  # torchrun runs main in every process
        report(results)


def report(results: Sequence[dict]) -> None:
    """Prints what rank 0 found, and whether all ranks ended with the same weights."""
    first = results[0]
    for epoch, (loss, right, seconds) in enumerate(
        zip(first["loss"], first["accuracy"], first["seconds"], strict=True), start=1
    ):
        print(f"epoch {epoch}: loss {loss:.4f}, test accuracy {right:.4f}, {seconds:.2f} s")
    print("samples by rank:", *(result["samples"] for result in results))
    print("weights:", *sorted({result["sha256"] for result in results}))


if __name__ == "__main__":
    main()
