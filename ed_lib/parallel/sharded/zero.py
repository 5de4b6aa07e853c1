"""Data parallel training with less and less on each rank: ZeRO's stages, each a change to the one before.

Stage 0 is plain data parallel; 1 shards the optimizer's state, 2 the gradients as well, 3 the weights. S.
Rajbhandari and others, "ZeRO" (2020); Y. Zhao and others, "PyTorch FSDP" (2023). A step, whatever the stage:
backward passes of losses *summed* over this rank's samples, then ``step(B)`` with B the samples of all ranks.
With one backward pass all stages form every sum in the same order, and end with the same bits.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import torch
import torch.distributed as dist

from ed_lib import check
from ed_lib.parallel.ranks import collectives
from ed_lib.parallel.ranks.collectives import Wire

Optimizer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


class Unit:
    """The parameters that a module trains, and no other unit has, as views of one vector ``weights`` (n,).

    ``kept``: what this rank's optimizer updates, all of ``weights`` or this rank's part of it.
    """

    def __init__(self, name: str, module: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]):
        self.name, self.module, self.parameters = name, module, list(parameters)
        self.weights = torch.cat([p.detach().flatten() for p in parameters])  # (n,)
        self.size, self.bytes = self.weights.numel(), self.weights.nbytes
        for p, view in zip(parameters, self.weights.split([p.numel() for p in parameters]), strict=True):
            p.data = view.view(p.shape)
        self.kept = self.weights
        self.awaited = set(parameters)  # those whose gradients the backward pass has not reached yet

    def part(self, flat: torch.Tensor, wire: Wire) -> torch.Tensor:
        """This rank's part of a vector (n,), a view."""
        return flat.tensor_split(wire.size)[wire.rank]

    def take_gradients(self) -> torch.Tensor:
        """The parameters' gradients, (n,), which they give up; 0 for one that had no part in the loss."""
        flat = self.weights.new_zeros(self.size)
        for p, place in zip(self.parameters, flat.split([p.numel() for p in self.parameters]), strict=True):
            if p.grad is not None:
                place.copy_(p.grad.flatten())
                p.grad = None
        self.awaited = set(self.parameters)
        return flat

    def free(self) -> None:
        """Gives the memory of ``weights`` back, and with it that of the parameters."""
        self.weights.untyped_storage().resize_(0)

    def make_room(self) -> None:
        """The same memory again, with anything in it."""
        self.weights.untyped_storage().resize_(self.bytes)

    @property
    def is_here(self) -> bool:
        return self.weights.untyped_storage().nbytes() == self.bytes


class Stage0:
    """Everything on every rank: gradients are summed by a ring, and each rank takes the whole step."""

    def __init__(self, module: torch.nn.Module, optimizer: Optimizer, units: Sequence[torch.nn.Module]):
        self.group = cast(Any, dist.new_group())
        self.wire, self.module, self.units = Wire(self.group), module, cut(module, units)
        for unit in self.units:
            self.agree(f"a unit {unit.name!r} of {unit.size} {unit.weights.dtype}")
            dist.broadcast(unit.weights, 0, self.group)
            unit.kept = self.keep(unit)
        self.optimizer = optimizer([unit.kept for unit in self.units])
        self.peak, self.full = 0, self.held()  # bytes: the most seen; and before the last step

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def keep(self, unit: Unit) -> torch.Tensor:
        """What this rank's optimizer updates of a unit."""
        return unit.weights

    def sum_gradients(self, unit: Unit) -> torch.Tensor:
        """The gradients of what is kept, summed over the ranks."""
        self.agree(f"the gradients of {unit.name!r}")
        flat = unit.take_gradients()
        collectives.ring(flat, self.wire)
        return flat

    def step(self, samples: int) -> None:
        """The optimizer's step on the mean gradient of so many ``samples`` of all ranks."""
        self.full = self.look()
        for unit in reversed(self.units):
            unit.kept.grad = self.sum_gradients(unit).div_(samples)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.spread()

    def spread(self) -> None:
        """Brings every rank's weights up to date; here they are."""

    def agree(self, call: str) -> None:
        """ValueError, on every rank, where the ranks are not at the same place."""
        collectives.agree(call, self.group)

    def look(self) -> dict[str, int]:
        """What this rank holds now; it is noted in ``peak``, if it is more than ever seen."""
        now = self.held()
        self.peak = max(self.peak, sum(now.values()))
        return now

    def held(self) -> dict[str, int]:
        """The bytes that this rank holds now: {"weights", "gradients", "optimizer": bytes}."""
        state = self.optimizer.state.values()
        moments = [t for of in state for t in of.values() if isinstance(t, torch.Tensor) and t.dim()]
        grads = [p.grad for unit in self.units for p in (*unit.parameters, unit.kept)]
        return {
            "weights": sum(nbytes([unit.weights, unit.kept]) for unit in self.units),
            "gradients": nbytes(gradient for gradient in grads if gradient is not None),
            "optimizer": nbytes(moments),
        }


class Stage1(Stage0):
    """Each rank's optimizer has a part of every unit: it needs that part's sum, and spreads its weights."""

    def keep(self, unit: Unit) -> torch.Tensor:
        return unit.part(unit.weights, self.wire)

    def sum_gradients(self, unit: Unit) -> torch.Tensor:
        return self.reduce(unit, unit.take_gradients())

    def reduce(self, unit: Unit, flat: torch.Tensor) -> torch.Tensor:
        """Gradients (n,) of this rank → this rank's part of their sum."""
        self.agree(f"the gradients of {unit.name!r}")
        collectives.ring_reduce_scatter(flat, self.wire)
        return unit.part(flat, self.wire).clone()  # the rest of flat is given back

    def spread(self) -> None:
        for unit in self.units:
            self.agree(f"the weights of {unit.name!r}")
            collectives.ring_all_gather(unit.weights, self.wire)


class Stage2(Stage1):
    """A unit's gradients are summed once the backward pass has left it, and each rank keeps its part only."""

    def __init__(self, module: torch.nn.Module, optimizer: Optimizer, units: Sequence[torch.nn.Module]):
        super().__init__(module, optimizer, units)
        self.to_come: list[Unit] = []  # units that this backward pass has not left yet, the last first
        for unit in self.units:
            for p in unit.parameters:
                p.register_post_accumulate_grad_hook(lambda p, unit=unit: self.arrived(unit, p))

    def arrived(self, unit: Unit, parameter: torch.Tensor) -> None:
        """A parameter's gradient is there. Units are summed in one order, the last first."""
        if not self.to_come:  # the first of a backward pass
            self.to_come = self.units[::-1]
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        self.look()
        unit.awaited.discard(parameter)
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
        if unit.kept.grad is None:
            raise RuntimeError("step() came before a backward pass")
        return unit.kept.grad


class Stage3(Stage2):
    """A unit's weights are gathered before it computes, forward and backward, and given back after it."""

    def __init__(self, module: torch.nn.Module, optimizer: Optimizer, units: Sequence[torch.nn.Module]):
        super().__init__(module, optimizer, units)
        for unit in self.units:
            unit.module.register_forward_pre_hook(lambda *_, unit=unit: self.gather(unit, 1))
            unit.module.register_forward_hook(lambda *_, unit=unit: unit.free())
            unit.module.register_full_backward_pre_hook(lambda *_, unit=unit: self.gather(unit, -1))

    def keep(self, unit: Unit) -> torch.Tensor:
        kept = unit.part(unit.weights, self.wire).clone()
        unit.free()
        return kept

    def gather(self, unit: Unit, way: int) -> None:
        """Has all of a unit's weights on this rank; way: 1 forward, −1 backward."""
        if not unit.is_here:
            unit.make_room()
            self.fetch(unit)

    def fetch(self, unit: Unit) -> None:
        self.agree(f"the weights of {unit.name!r}")
        unit.part(unit.weights, self.wire).copy_(unit.kept)
        collectives.ring_all_gather(unit.weights, self.wire)

    def scatter(self, unit: Unit) -> None:
        super().scatter(unit)
        unit.free()

    def spread(self) -> None:
        """Nothing: the next forward pass gathers."""


class Prefetching(Stage3):
    """Stage 3 that sends on a thread of its own, as a GPU does on a stream of its own: while a unit computes,
    the next one's weights come, and the gradients of the one before go.
    """

    def __init__(self, module: torch.nn.Module, optimizer: Optimizer, units: Sequence[torch.nn.Module]):
        self.sender, self.coming = ThreadPoolExecutor(1), dict[Unit, Future]()
        self.sums: list[Future] = []
        super().__init__(module, optimizer, units)

    def gather(self, unit: Unit, way: int) -> None:
        after = self.units.index(unit) + way
        for wanted in (unit, *self.units[max(after, 0) : after + 1]):
            if wanted not in self.coming and not wanted.is_here:
                wanted.make_room()
                self.coming[wanted] = self.sender.submit(self.fetch, wanted)
        if unit in self.coming:
            self.coming.pop(unit).result()

    def scatter(self, unit: Unit) -> None:
        flat = unit.take_gradients()
        unit.free()
        self.sums.append(self.sender.submit(lambda: self.add(unit, self.reduce(unit, flat))))

    def step(self, samples: int) -> None:
        for done in self.sums:
            done.result()
        self.sums = []
        super().step(samples)


STAGES: dict[Any, type[Stage0]] = {0: Stage0, 1: Stage1, 2: Stage2, 3: Stage3, "prefetching": Prefetching}


def shard(
    module: torch.nn.Module, optimizer: Optimizer, stage: int | str = 3,
    units: Sequence[torch.nn.Module] = (),
) -> Stage0:  # fmt: skip
    """A module that all ranks train together, by a stage of ZeRO, from rank 0's weights on.

    stage: 0 to 3, or "prefetching": 3 with messages beside the computing. optimizer: from a list of tensors,
    a ``torch.optim.Optimizer`` that treats every number by itself, as SGD and Adam do. units: modules within
    ``module``, in the order in which they compute, of which each one's parameters are sent together; what is
    in none of them is a unit of its own. ValueError for a parameter in two, or where the ranks' differ.
    """
    check.choice("stage", stage, STAGES)
    return STAGES[stage](module, optimizer, units)


def cut(module: torch.nn.Module, modules: Sequence[torch.nn.Module]) -> list[Unit]:
    """A unit for what none of the ``modules`` has, if there is such, and then one for each of them."""
    names: dict[torch.nn.Module, str] = {part: name for name, part in module.named_modules()}
    owner: dict[torch.nn.Parameter, str] = {}
    of: list[tuple[str, torch.nn.Module, list]] = []
    for part in modules:
        if part not in names:
            raise ValueError(f"units has a {type(part).__name__} that is no part of the module")
        mine = [(name, p) for name, p in part.named_parameters() if p.requires_grad]
        for name, p in mine:
            if p in owner:
                said = f"the parameter {f'{names[part]}.{name}'.strip('.')} is {owner[p]} too"
                raise ValueError(f"{said}; wanted it in one unit: leave both modules out")
            owner[p] = f"{names[part]}.{name}".strip(".")
        of.append((names[part], part, [p for _, p in mine]))
    rest = [p for p in module.parameters() if p.requires_grad and p not in owner]
    if rest:
        of.insert(0, ("the rest", module, rest))
    for name, _, parameters in of:
        kinds = {(p.dtype, p.device) for p in parameters}
        if len(kinds) != 1:
            raise ValueError(f"the unit {name!r} has parameters of {kinds}; wanted one kind")
    return [Unit(*entry) for entry in of]


def nbytes(tensors: Any) -> int:
    """The bytes of the memory that tensors lie in, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
