"""LeNet on several devices, from scratch: copy the parameters, split the batch, add up the gradients.

The names are those of Zhang, Lipton, Li and Smola, "Dive into Deep Learning" (d2l.ai), section 13.5. A list
of devices may name one several times: ``["cpu"] * 4`` simulates four in one process. B samples, p devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from ed_lib import check, training

SHAPES = ((20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,))
SCALE = 0.01  # standard deviation of the first weights


@dataclass
class History(training.History):
    """A training run, and the first device's parameters at its end."""

    params: list[torch.Tensor] = field(default_factory=list, repr=False)


def init_params(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """LeNet's eight parameters, 129,068 numbers: weights from N(0, 0.01²), biases 0, on the CPU.

    Shapes as in SHAPES: filters (out, in, height, width), then matrices (in, out), each with its bias.
    """
    generator = torch.Generator().manual_seed(seed)
    params = [torch.zeros(shape, dtype=dtype) for shape in SHAPES]
    for weight in params[::2]:
        weight.normal_(0, SCALE, generator=generator)
    return params


def lenet(x: torch.Tensor, params: Sequence[torch.Tensor]) -> torch.Tensor:
    """Images x (B, 1, 28, 28) and the eight parameters → scores of the ten classes, (B, 10)."""
    w1, b1, w2, b2, w3, b3, w4, b4 = params
    h = F.avg_pool2d(F.relu(F.conv2d(x, w1, b1)), 2)  # (B, 1, 28, 28) → (B, 20, 26, 26) → (B, 20, 13, 13)
    h = F.avg_pool2d(F.relu(F.conv2d(h, w2, b2)), 2)  # → (B, 50, 9, 9) → (B, 50, 4, 4)
    h = F.relu(h.flatten(1) @ w3 + b3)  # → (B, 800) → (B, 128)
    return h @ w4 + b4  # → (B, 10)


class LeNet(torch.nn.Module):
    """The same network as a module, for everything that wants one."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.params = torch.nn.ParameterList(init_params(seed, dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return lenet(x, list(self.params))


def get_params(params: Sequence[torch.Tensor], device: str | torch.device) -> list[torch.Tensor]:
    """Copies of the parameters on a device, to be differentiated. They share memory with nothing."""
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]


def allreduce(data: Sequence[torch.Tensor]) -> None:
    """The sum of tensors of one shape, each on its own device, into all of them, in place."""
    first, *others = data
    for tensor in others:
        first += tensor.to(first.device)
    for tensor in others:
        tensor.copy_(first)


def split_batch(
    x: torch.Tensor, y: torch.Tensor, devices: Sequence[str | torch.device]
) -> tuple[list[torch.Tensor], ...]:
    """Samples x (B, …) and labels y (B,) → p shards of each, one on each device.

    Cut as torch.tensor_split does it: where p does not divide B, the first B mod p shards have one more.
    """
    shards = (rows.tensor_split(len(devices)) for rows in (x, y))
    return tuple([shard.to(device) for shard, device in zip(s, devices, strict=True)] for s in shards)


def sgd(params: Sequence[torch.Tensor], lr: float, batch_size: int) -> None:
    """A step of stochastic gradient descent on the gradients of a summed loss, which it then sets to zero."""
    with torch.no_grad():
        for param in params:
            assert param.grad is not None  # a backward pass went before
            param -= lr * param.grad / batch_size
            param.grad.zero_()


def train_batch(
    x: torch.Tensor,
    y: torch.Tensor,
    device_params: Sequence[list[torch.Tensor]],
    devices: Sequence[str | torch.device],
    lr: float,
) -> torch.Tensor:
    """One step on a batch shared by p devices → the batch's mean loss before it, a tensor.

    Each device computes the summed loss of its shard and the gradient of that; the gradients are summed over
    the devices, and divided by B: so every device takes the same step, and shards may be uneven.
    """
    x_shards, y_shards = split_batch(x, y, devices)
    losses = [
        F.cross_entropy(lenet(x_shard, params), y_shard, reduction="sum")
        for x_shard, y_shard, params in zip(x_shards, y_shards, device_params, strict=True)
    ]
    for loss in losses:  # on GPUs these run at the same time
        loss.backward()
    for same in zip(*device_params, strict=True):  # one parameter, as every device has it
        allreduce([param.grad for param in same])
    for params in device_params:
        sgd(params, lr, len(x))
    return sum((loss.detach().to(devices[0]) for loss in losses), torch.zeros(())) / len(x)


def train(
    devices: Sequence[str | torch.device], batch_size: int, lr: float, epochs: int,
    images: torch.Tensor, labels: torch.Tensor, test: tuple[torch.Tensor, torch.Tensor], seed: int = 0,
) -> History:  # fmt: skip
    """Trains LeNet on a list of devices → :class:`History`.

    images (N, 1, 28, 28) and labels (N,), and test, a pair of such.
    Where ``batch_size`` does not divide N, an epoch's last batch is smaller, with a sample for each device.
    """
    check.shape("labels", tuple(labels.shape), (len(images),))
    smallest = min(len(images), len(images) % check.count("batch_size", batch_size) or batch_size)
    if not 1 <= len(devices) <= smallest:
        raise ValueError(
            f"devices has {len(devices)} for a batch of {smallest}; wanted one, or up to as many"
        )
    check.positive("lr", lr)
    device_params = [get_params(init_params(seed, images.dtype), device) for device in devices]

    def step(rows):
        return train_batch(images[rows], labels[rows], device_params, devices, lr)

    def look():
        return accuracy(*test, device_params, devices)

    run = training.loop(step, len(images), look, epochs=epochs, batch=batch_size, seed=1000 * seed)
    return History(**vars(run), params=device_params[0])


def accuracy(
    x: torch.Tensor, y: torch.Tensor, device_params: Sequence[list[torch.Tensor]],
    devices: Sequence[str | torch.device],
) -> float:  # fmt: skip
    """The share of samples that p devices together classify rightly: each counts on its shard.

    Counts are added up, and divided once: the mean of the devices' shares would be wrong for uneven shards.
    """
    shards = zip(*split_batch(x, y, devices), device_params, strict=True)
    right = [training.correct(lambda x, params=params: lenet(x, params), *shard) for *shard, params in shards]
    return sum(int(count) for count in right) / len(x)
