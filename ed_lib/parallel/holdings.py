"""What a rank holds of a module that is trained in units: by name, and in bytes."""

from collections.abc import Iterable
from typing import Any

import torch

from ed_lib.parallel import ledger
from ed_lib.parallel.units import Unit


class Holdings:
    """A module, its ``units``, what is not trained of it, and its optimizer.

    ``peak``: the most bytes that were seen; ``full``: those before the last step.
    """

    module: torch.nn.Module
    units: list[Unit]
    optimizer: Any
    peak: int
    full: dict[str, int]

    def untrained(self) -> dict[str, torch.Tensor]:
        """Frozen parameters and buffers, by name: whole on every rank."""
        parameters = self.module.named_parameters()
        frozen = {name: p.detach() for name, p in parameters if not p.requires_grad}
        return frozen | dict(self.module.named_buffers())

    def layout(self) -> dict[str, str]:
        """{name: what it is and where it lies} of every tensor, which all ranks and a checkpoint
        share.
        """
        found = {}
        for unit in self.units:
            for n, (name, p) in enumerate(unit.named.items()):
                # with the order, since a rank's part is cut by numbers and not by names
                place = f"number {n} of the unit {unit.name!r}"
                found[name] = f"{tuple(p.shape)} of {p.dtype}, {place}"
        for name, tensor in self.untrained().items():
            found[name] = f"{tuple(tensor.shape)} of {tensor.dtype}, not trained"
        return found

    def options(self) -> str:
        """The optimizer's kind, and the options of each of its groups, as the learning rate."""
        groups = []
        for group in self.optimizer.param_groups:
            # of the parameters their number: what they are differs by rank
            groups.append(group | {"params": len(group["params"])})
        return f"{type(self.optimizer).__name__} {groups}"

    def look(self) -> dict[str, int]:
        """What this rank holds now; it is noted in ``peak``, if it is more than ever seen."""
        now = self.held()
        self.peak = max(self.peak, sum(now.values()))
        return now

    def held(self) -> dict[str, int]:
        """The bytes that this rank holds now: {"weights", "gradients", "optimizer": bytes}."""
        weights: list[torch.Tensor] = []
        owners: list[torch.Tensor] = []
        for unit in self.units:
            # what is kept may lie in the weights; the ledger counts a memory once
            weights += [unit.weights, unit.kept]
            # before a step they are the parameters', and then the optimizer's
            owners += [*unit.parameters, unit.kept]
        moments: list[Any] = []
        for state in self.optimizer.state.values():
            moments += state.values()
        return {
            "weights": ledger.nbytes(weights),
            "gradients": ledger.nbytes(gradients_of(owners)),
            "optimizer": ledger.nbytes(moments),
        }


def gradients_of(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of those that have one."""
    return [tensor.grad for tensor in tensors if tensor.grad is not None]
