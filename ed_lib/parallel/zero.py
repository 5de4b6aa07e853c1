"""Data parallel training with less and less on each rank: ZeRO's stages, each a change to another.

Stage 0 is plain data parallel; 1 shards the optimizer's state, 2 the gradients as well, 3 the
weights. S. Rajbhandari and others, "ZeRO" (2020); Y. Zhao and others, "PyTorch FSDP" (2023). A
step, whatever the stage: backward passes of losses *summed* over this rank's samples, then
``step(B)`` with B the samples of all ranks. With one backward pass all stages form every sum in the
same order. So they end with the same bits, unclipped, by an optimizer that computes a number alike
wherever it lies in a vector: SGD and Adam do; ``fused=True`` may round the last few numbers of a
vector otherwise (3e-18, seen in float64).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from ed_lib import check
from ed_lib.parallel import collectives, random_states
from ed_lib.parallel.collectives import Wire, agree
from ed_lib.parallel.holdings import Holdings, gradients_of
from ed_lib.parallel.units import Unit, check_memory, units_of


class Stage0(Holdings):
    """Everything on every rank: a ring sums the gradients, and each rank takes the whole step."""

    is_sharded = False

    def __init__(
        self, module: torch.nn.Module, optimizer: Callable, units: Sequence[torch.nn.Module]
    ):
        self.group: Any = dist.new_group()
        self.wire = Wire(self.group)
        self.module = module
        self.units = units_of(module, units)
        agree(f"{type(self).__name__} of {self.layout()}", self.group)
        check_memory(self.untrained())
        # all start from rank 0's
        weights = [unit.weights for unit in self.units]
        for tensor in (*weights, *self.untrained().values()):
            collectives.copy_from_0(tensor, self.group)
        for unit in self.units:
            unit.kept = self.keep(unit)
        self.optimizer = optimizer([unit.kept for unit in self.units])
        self.peak = 0
        self.full = self.held()

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def keep(self, unit: Unit) -> torch.Tensor:
        """The weights of a unit that this rank's optimizer updates."""
        return unit.weights

    def sum_gradients(self, unit: Unit) -> torch.Tensor:
        """The gradients of what is kept, summed over the ranks."""
        agree(f"the gradients of {unit.name!r}", self.group)
        flat = unit.take_gradients()
        collectives.ring(flat, self.wire)
        return flat

    def step(self, samples: int, max_norm: float | None = None) -> None:
        """The optimizer's step on the mean gradient of so many ``samples`` of all ranks, perhaps
        clipped.

        ValueError on all ranks if they pass different arguments or optimizer options, or if a rank
        is still in its backward pass, or if only some ranks have had a backward pass. ValueError if
        ``samples`` is below one or ``max_norm`` not above 0. RuntimeError if no rank has had a
        backward pass.
        """
        self.full = self.look()
        self.check_step(samples, max_norm)
        # the last first, as a backward pass comes to them
        for unit in reversed(self.units):
            unit.kept.grad = self.sum_gradients(unit).div_(samples)
        if max_norm is not None:
            self.clip(max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.spread()

    def check_step(self, samples: int, max_norm: float | None) -> None:
        """The errors of :meth:`step`."""
        has_gradients = any(gradients_of([unit.kept, *unit.parameters]) for unit in self.units)
        # ranks that scaled a gradient by different numbers would drift apart, without a word; and
        # a rank that raised by itself, without a backward pass, would leave the others waiting
        gradients = "gradients" if has_gradients else "no gradients"
        agree(f"step({samples!r}, {max_norm!r}) of {self.options()}, {gradients}", self.group)
        if not has_gradients:
            raise RuntimeError("step() came before a backward pass")
        check.count("samples", samples)
        if max_norm is not None:
            check.positive("max_norm", max_norm)

    def clip(self, max_norm: float) -> None:
        """Scales the mean gradient if its norm, of all units and ranks, is above ``max_norm``."""
        # in float64: a gradient of 300 has a square that float16 does not hold
        squares = [unit.kept.grad.double().square().sum() for unit in self.units]
        square = torch.stack(squares).sum()
        if self.is_sharded:
            # each rank has seen its parts only
            dist.all_reduce(square, group=self.group)
        # as clip_grad_norm_ has it
        scale = (max_norm / (square.sqrt() + 1e-6)).clamp(max=1)
        for unit in self.units:
            unit.kept.grad.copy_(unit.kept.grad.double() * scale)

    def zero_grad(self) -> None:
        """Forgets gradients, as after a backward pass that raised."""
        for unit in self.units:
            unit.take_gradients()
            unit.kept.grad = None

    def spread(self) -> None:
        """Brings every rank's weights up to date; here they are."""

    def gather(self, unit: Unit) -> None:
        """Has all of a unit's weights on this rank; here they are."""


class Stage1(Stage0):
    """Each rank's optimizer has a part of every unit: it needs that part's sum, and spreads its
    weights.
    """

    is_sharded = True

    def keep(self, unit: Unit) -> torch.Tensor:
        return unit.part(unit.weights, self.wire)

    def sum_gradients(self, unit: Unit) -> torch.Tensor:
        return self.reduce(unit, unit.take_gradients())

    def reduce(self, unit: Unit, flat: torch.Tensor) -> torch.Tensor:
        """Gradients (n,) of this rank → this rank's part of their sum."""
        agree(f"the gradients of {unit.name!r}", self.group)
        collectives.ring_reduce_scatter(flat, self.wire)
        # a copy, so that the memory of the rest is given back
        return unit.part(flat, self.wire).clone()

    def spread(self) -> None:
        for unit in self.units:
            agree(f"the weights of {unit.name!r}", self.group)
            collectives.ring_all_gather(unit.weights, self.wire)


class Stage2(Stage1):
    """A unit's gradients are summed once the backward pass has left it, and each rank keeps its
    part only.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        # units that this backward pass has not left yet, the last first
        self.to_come: list[Unit] = []
        for unit in self.units:
            for p in unit.parameters:
                p.register_post_accumulate_grad_hook(lambda p, unit=unit: self.arrived(unit, p))

    def __call__(self, *inputs: Any) -> Any:
        if self.to_come:
            raise RuntimeError(
                "the last backward pass came to no end; wanted zero_grad() before the next"
            )
        return super().__call__(*inputs)

    def zero_grad(self) -> None:
        self.to_come = []
        super().zero_grad()

    def arrived(self, unit: Unit, parameter: torch.Tensor) -> None:
        """A parameter's gradient is there. Units are summed in one order, the last first."""
        if not self.to_come:
            # it is the first of a backward pass
            self.to_come = self.units[::-1]
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        self.look()
        unit.awaited.discard(parameter)
        # one that is complete too early waits, since all ranks meet in each sum
        while self.to_come and not self.to_come[0].awaited:
            self.scatter(self.to_come.pop(0))

    def finish(self) -> None:
        """At the end of a backward pass: units with parameters that had no part in the loss."""
        while self.to_come:
            self.scatter(self.to_come.pop(0))

    def scatter(self, unit: Unit) -> None:
        """Adds this rank's part of a unit's sum to what earlier backward passes brought."""
        self.add(unit, self.reduce(unit, unit.take_gradients()))

    def add(self, unit: Unit, part: torch.Tensor) -> None:
        unit.kept.grad = part if unit.kept.grad is None else unit.kept.grad.add_(part)

    def sum_gradients(self, unit: Unit) -> torch.Tensor:
        return unit.kept.grad


class Stage3(Stage2):
    """A unit's weights are gathered before it computes, forward and backward, and given back after
    it.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        # through the units: 1 forward, -1 backward
        self.way = 1
        for unit in self.units:
            unit.module.register_forward_pre_hook(lambda *_, unit=unit: self.gather(unit))
            unit.module.register_forward_hook(lambda *call, unit=unit: self.leave(unit, call[-1]))

    def __call__(self, *inputs: Any) -> Any:
        self.way = 1
        return super().__call__(*inputs)

    def keep(self, unit: Unit) -> torch.Tensor:
        # a copy, since the memory of all weights is given back
        kept = unit.part(unit.weights, self.wire).clone()
        unit.free()
        return kept

    def gather(self, unit: Unit) -> None:
        if not unit.is_here:
            unit.make_room()
            self.fetch(unit)

    def leave(self, unit: Unit, outputs: Any) -> None:
        """A unit has computed its outputs, so its weights are freed. In the backward pass the first
        gradient that reaches one of these outputs gathers the unit's weights again.
        """

        def back(_):
            self.way = -1
            self.gather(unit)

        tensors = [each for each in tree_leaves(outputs) if isinstance(each, torch.Tensor)]
        if any(unit.has(tensor) for tensor in tensors):
            raise RuntimeError(
                f"the unit {unit.name!r} gives a view of its weights, which leave; wanted a copy"
            )
        self.free(unit)
        # the first of these gradients means that the backward pass is about to enter the unit
        ends = [tensor for tensor in tensors if tensor.requires_grad]
        torch.autograd.graph.register_multi_grad_hook(ends, back, mode="any")

    def fetch(self, unit: Unit) -> None:
        agree(f"the weights of {unit.name!r}", self.group)
        unit.part(unit.weights, self.wire).copy_(unit.kept)
        collectives.ring_all_gather(unit.weights, self.wire)

    def free(self, unit: Unit) -> None:
        unit.free()

    def arrived(self, unit: Unit, parameter: Any) -> None:
        if not unit.is_here:
            # no output of the unit has led to it
            raise RuntimeError(parameter.error)
        super().arrived(unit, parameter)

    def scatter(self, unit: Unit) -> None:
        super().scatter(unit)
        self.free(unit)

    def spread(self) -> None:
        """The next forward pass gathers; what a pass has left, by an error or for a unit not used,
        is old.
        """
        for unit in self.units:
            self.free(unit)


STAGES: dict[Any, type[Stage0]] = {0: Stage0, 1: Stage1, 2: Stage2, 3: Stage3}


def shard(
    module: torch.nn.Module,
    optimizer: Callable,
    stage: int | str = 3,
    units: Sequence[torch.nn.Module] = (),
    equal_draws: bool = False,
) -> Stage0:
    """A module that all ranks train together, by a stage of ZeRO, from rank 0's parameters and
    buffers on.

    stage: 0 to 3. optimizer: from a list of tensors, a ``torch.optim.Optimizer`` that treats every
    number by itself, as SGD and Adam do. units: modules within ``module``, in the order in which
    they compute, of which each one's parameters are sent together; what is in none of them is a
    unit of its own. What is not trained stays whole on each rank. In stage 3 a unit's parameters
    are there while its module computes, and what it computes of them must reach the loss by its
    outputs. From here on each rank draws its own random numbers, so that dropout differs, unless
    ``equal_draws``. ValueError for a unit's parameter that another module has, for what is not
    trained and sparse or expanded, or ranks that differ.
    """
    check.choice("stage", stage, STAGES)
    sharded = STAGES[stage](module, optimizer, units)
    random_states.part_ways(equal_draws, sharded.group)
    return sharded
