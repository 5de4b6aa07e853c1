"""Which way to split a training step over p devices: the seconds and the bytes of each way, in the α–β model.

The model is a stack of L layers of width W: L·W² parameters, 2·W² FLOPs a sample and layer forward and twice
that backward. What can be sent while a device computes is: gradients during the backward pass, a pipeline's
messages. Memory is that of parameters, gradients and the inputs of all layers. It is meant for choosing, not
for predicting to the percent.
"""

from dataclasses import dataclass

from ed_lib import arrays
from ed_lib.parallel import costs, schedules
from ed_lib.parallel.simulator import simulate


@dataclass(frozen=True)
class Job:
    """A training step: ``layers`` of ``width`` cells, a ``batch`` of samples, ``itemsize`` bytes a number."""

    layers: int
    width: int
    batch: int
    itemsize: int = 4

    def __post_init__(self):
        for name in ("layers", "width", "batch", "itemsize"):
            arrays.check_count(name, getattr(self, name))

    @property
    def parameters(self):
        """Bytes of all parameters."""
        return self.layers * self.width**2 * self.itemsize

    @property
    def activations(self):
        """Bytes between two layers, for the whole batch."""
        return self.batch * self.width * self.itemsize

    @property
    def flops(self):
        """FLOPs of the forward pass."""
        return 2 * self.layers * self.width**2 * self.batch


@dataclass(frozen=True)
class Devices:
    """``count`` devices of ``rate`` FLOP/s with ``memory`` bytes each, and the ``link`` between any two."""

    count: int
    rate: float
    memory: float
    link: costs.Link

    def __post_init__(self):
        arrays.check_count("count", self.count)
        arrays.check_positive("rate", self.rate)
        arrays.check_positive("memory", self.memory)


@dataclass(frozen=True)
class Plan:
    """A way to do the step: its ``seconds``, of which the devices compute for ``computing``, and the bytes of
    ``memory`` on the fullest device. ``obstacle``: why it cannot be done, or "".
    """

    name: str
    seconds: float
    computing: float
    memory: float
    obstacle: str = ""

    def __str__(self):
        if self.obstacle:
            return f"{self.name}: {self.obstacle}"
        return f"{self.name}: {self.seconds:.3g} s, {self.computing / self.seconds:.0%} of it computing"


def plans(job, devices):
    """Every way to do the job → a list of :class:`Plan`: one device, and the ways to split it."""
    return [_alone(job, devices), _data(job, devices), _pipeline(job, devices), _tensor(job, devices)]


def recommend(job, devices):
    """The fastest plan that is possible, and the reasons → (Plan, list of sentences).

    ValueError if no plan is possible, with the obstacle of each.
    """
    every = plans(job, devices)
    possible = sorted((plan for plan in every if not plan.obstacle), key=lambda plan: plan.seconds)
    if not possible:
        raise ValueError("no way to do this job: " + "; ".join(map(str, every)))
    best = possible[0]
    because = [f"{best}."]
    because += [f"{plan}: {plan.seconds / best.seconds:.2g} times as long." for plan in possible[1:]]
    return best, because + [f"{plan}." for plan in every if plan.obstacle]


def _alone(job, devices):
    seconds = 3 * job.flops / devices.rate
    memory = 2 * job.parameters + job.layers * job.activations
    return _plan("one device", seconds, seconds, memory, devices)


def _data(job, devices):
    """Each device has all parameters and 1/p of the batch; a ring sums gradients during the backward pass."""
    p, name = devices.count, "data parallel"
    computing = 3 * job.flops / devices.rate / p
    ring = costs.all_reduce("ring", job.parameters, p, devices.link)
    seconds = computing / 3 + max(2 / 3 * computing, ring)
    memory = 2 * job.parameters + job.layers * job.activations / p
    return _plan(name, seconds, computing, memory, devices, (job.batch, "samples"))


def _pipeline(job, devices):
    """Each device has 1/p of the layers, and works by 1F1B on the best number of micro-batches, up to 8p."""
    p, name = devices.count, "pipeline"
    computing = 3 * job.flops / devices.rate / p
    numbers = [m for m in (p, 2 * p, 4 * p, 8 * p) if m <= job.batch] or [job.batch]
    times = {m: _one_f_one_b(job, devices, m) for m in numbers}
    m = min(times, key=times.get)
    memory = 2 * job.parameters / p + min(m, p) / m * job.layers / p * job.activations
    return _plan(name, times[m], computing, memory, devices, (job.layers, "layers"))


def _one_f_one_b(job, devices, m):
    forward = job.flops / devices.rate / devices.count / m
    size = job.activations / m
    return simulate(
        schedules.one_f_one_b,
        devices.count,
        m,
        {"forward": forward, "backward": 2 * forward},
        devices.link,
        {"activation": size, "gradient": size},
    ).seconds


def _tensor(job, devices):
    """Each device has 1/p of every layer; a pair of layers needs an all-reduce forward and one backward."""
    p, name = devices.count, "tensor parallel"
    computing = 3 * job.flops / devices.rate / p
    pairs = -(-job.layers // 2)
    seconds = computing + 2 * pairs * costs.all_reduce("ring", job.activations, p, devices.link)
    # The inputs of a pair are whole on every device, the cells between its two layers are split.
    memory = 2 * job.parameters / p + (pairs + (job.layers - pairs) / p) * job.activations
    return _plan(name, seconds, computing, memory, devices, (job.width, "cells in a layer"))


def _plan(name, seconds, computing, memory, devices, divided=None):
    obstacle = ""
    if divided and divided[0] < devices.count:
        obstacle = f"{divided[0]} {divided[1]} for {devices.count} devices"
    elif memory > devices.memory:
        obstacle = f"takes {memory / 2**30:.3g} GiB of the {devices.memory / 2**30:.3g} GiB of a device"
    return Plan(name, seconds, computing, memory, obstacle)
