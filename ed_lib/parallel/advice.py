"""Which way to split a training step over p devices: the seconds and the bytes of each way, in the α–β model.

The model is a stack of L layers of width W: L·W² parameters, 2·W² FLOPs a sample and layer forward and twice
that backward. A product takes its arithmetic, or reading its weights where that is longer, and a launch. What
can be sent while a device computes is: a pipeline's messages; gradients during the backward pass, in buckets;
a sharded layer's weights, once the layer before it computes. It is meant for choosing, not for predicting.
"""

from dataclasses import dataclass

from ed_lib import check
from ed_lib.parallel.model_parallel import schedules
from ed_lib.parallel.model_parallel.simulator import simulate
from ed_lib.parallel.ranks import costs

WORTH = 0.9  # of one device's time, at most, is what a way to split it may take


@dataclass(frozen=True)
class Job:
    """A training step; an optimizer keeps ``moments`` numbers for each weight: two, as Adam does."""

    layers: int
    width: int
    batch: int
    itemsize: int = 4
    moments: int = 2

    def __post_init__(self):
        for name in ("layers", "width", "batch", "itemsize"):
            check.count(name, getattr(self, name))

    @property
    def parameters(self) -> int:
        """Bytes of all parameters."""
        return self.layers * self.width**2 * self.itemsize

    @property
    def state(self) -> int:
        """Bytes of all parameters, their gradients and the optimizer's moments."""
        return (2 + self.moments) * self.parameters

    @property
    def activations(self) -> int:
        """Bytes between two layers, for the whole batch."""
        return self.batch * self.width * self.itemsize


@dataclass(frozen=True)
class Devices:
    """``count`` devices: FLOP/s, bytes/s of their memory, seconds of a launch, bytes, a link between any."""

    count: int
    rate: float
    bandwidth: float
    launch: float
    memory: float
    link: costs.Link

    def __post_init__(self):
        check.count("count", self.count)
        for name in ("rate", "bandwidth", "memory"):
            check.positive(name, getattr(self, name))


@dataclass(frozen=True)
class Plan:
    """A way to do the step: ``seconds``, of which ``computing``; bytes of ``memory``; or the ``obstacle``."""

    name: str
    seconds: float
    computing: float
    memory: float
    obstacle: str = ""

    def __str__(self):
        if self.obstacle:
            return f"{self.name}: {self.obstacle}"
        return f"{self.name}: {self.seconds:.3g} s, {self.computing / self.seconds:.0%} of it computing"


def plans(job: Job, devices: Devices) -> list[Plan]:
    """Every way to do the job → a list of :class:`Plan`: one device, and the ways to split it."""
    return [way(job, devices) for way in (alone, data, sharded, pipeline, tensor)]


def recommend(job: Job, devices: Devices) -> tuple[Plan, list[str]]:
    """The fastest plan that is possible, and the reasons → (Plan, list of sentences).

    Splitting has to save a tenth of one device's time, or one device it is. ValueError if none is possible.
    """
    every = plans(job, devices)
    possible = [plan for plan in every if not plan.obstacle]
    possible.sort(key=lambda plan: plan.seconds * (WORTH if plan.name == "one device" else 1))
    if not possible:
        raise ValueError("no way to do this job: " + "; ".join(map(str, every)))
    best = possible[0]
    because = [f"{best}."]
    because += [f"{plan}: {plan.seconds / best.seconds:.2g} times as long." for plan in possible[1:]]
    return best, because + [f"{plan}." for plan in every if plan.obstacle]


def layer(job: Job, devices: Devices, rows: float, cells: float) -> float:
    """Seconds of one layer's forward pass: ``rows`` samples, ``cells`` of its W outputs."""
    arithmetic = 2 * rows * job.width * cells / devices.rate
    reading = job.width * cells * job.itemsize / devices.bandwidth  # the weights
    return devices.launch + max(arithmetic, reading)


def alone(job: Job, devices: Devices) -> Plan:
    """All on one device."""
    seconds = 3 * job.layers * layer(job, devices, job.batch, job.width)
    memory = job.state + job.layers * job.activations
    return _plan("one device", seconds, seconds, memory, devices)


def data(job: Job, devices: Devices) -> Plan:
    """Each device has all parameters and 1/p of the batch; rings sum gradients during the backward pass."""
    p, name = devices.count, "data parallel"
    computing = 3 * job.layers * layer(job, devices, job.batch / p, job.width)
    backward, _ = costs.overlapped(2 / 3 * computing, job.parameters, p, devices.link, most=job.layers)
    seconds = computing / 3 + backward
    memory = job.state + job.layers * job.activations / p
    return _plan(name, seconds, computing, memory, devices, (job.batch, "samples"))


def sharded(job: Job, devices: Devices) -> Plan:
    """Data parallel with 1/p of the weights, gradients and moments on each device (ZeRO-3, FSDP); what is
    gathered and summed, half a ring each, goes while a neighbouring layer computes."""
    p, name = devices.count, "sharded data parallel"
    forward = layer(job, devices, job.batch / p, job.width)  # of one layer; backward takes twice that
    of_layer = job.parameters / job.layers
    half = costs.all_reduce("ring", of_layer, p, devices.link) / 2
    seconds = 3 * job.layers * max(forward, half) + 2 * half  # the first and the last alone
    memory = (job.state + job.layers * job.activations) / p + 2 * of_layer  # the layer at work, and the next
    return _plan(name, seconds, 3 * job.layers * forward, memory, devices, (job.batch, "samples"))


def pipeline(job: Job, devices: Devices) -> Plan:
    """Each device has 1/p of the layers, and works by 1F1B on the best number of micro-batches, up to 8p."""
    p, name = devices.count, "pipeline"
    numbers = [m for m in (p, 2 * p, 4 * p, 8 * p) if m <= job.batch] or [job.batch]
    times = {m: _one_f_one_b(job, devices, m) for m in numbers}
    m = min(times, key=times.__getitem__)
    computing = 3 * m * _stage(job, devices, m)
    memory = job.state / p + min(m, p) / m * job.layers / p * job.activations
    return _plan(name, times[m], computing, memory, devices, (job.layers, "layers"))


def _stage(job, devices, m):
    """Seconds of a stage's forward pass for one of m micro-batches."""
    return job.layers / devices.count * layer(job, devices, job.batch / m, job.width)


def _one_f_one_b(job, devices, m):
    forward, size = _stage(job, devices, m), job.activations / m
    seconds = {"forward": forward, "backward": 2 * forward}
    sizes = {"activation": size, "gradient": size}
    return simulate(schedules.one_f_one_b, devices.count, m, seconds, devices.link, sizes).seconds


def tensor(job: Job, devices: Devices) -> Plan:
    """Each device has 1/p of every layer; a pair of layers needs an all-reduce forward and one backward."""
    p, name = devices.count, "tensor parallel"
    computing = 3 * job.layers * layer(job, devices, job.batch, job.width / p)
    pairs = -(-job.layers // 2)
    seconds = computing + 2 * pairs * costs.all_reduce("ring", job.activations, p, devices.link)
    # The inputs of a pair are whole on every device, the cells between its two layers are split.
    memory = job.state / p + (pairs + (job.layers - pairs) / p) * job.activations
    return _plan(name, seconds, computing, memory, devices, (job.width, "cells in a layer"))


def _plan(name, seconds, computing, memory, devices, divided=None):
    obstacle = ""
    if divided and divided[0] < devices.count:
        obstacle = f"{divided[0]} {divided[1]} for {devices.count} devices"
    elif memory > devices.memory:
        obstacle = f"takes {memory / 2**30:.3g} GiB of the {devices.memory / 2**30:.3g} GiB of a device"
    return Plan(name, seconds, computing, memory, obstacle)
