"""The parameters of a module as a few flat vectors, of which each rank can own a part: FSDP's
units.

Y. Zhao and others, "PyTorch FSDP" (2023), section 3.2.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ed_lib.parallel.collectives import Wire


class Unit:
    """The parameters that a module trains, and no other unit has, as views of one vector
    ``weights`` (n,).

    named: {name in the whole module: parameter}. ``kept``: what this rank's optimizer updates, all
    of ``weights`` or this rank's part of it. While ``weights`` has no memory, each parameter is NaN
    throughout: so what uses one then, by any reference to it, is not wrong in silence.
    """

    def __init__(self, name: str, module: torch.nn.Module, named: dict[str, torch.nn.Parameter]):
        self.name, self.module, self.named = name, module, named
        self.parameters = list(named.values())
        self.weights = torch.cat([p.detach().flatten() for p in self.parameters])  # (n,)
        self.nothing = self.weights.new_full((), torch.nan)
        self.kept: Any = self.weights
        self.awaited = set(
            self.parameters
        )  # those whose gradients the backward pass has not reached yet
        self.make_room()

    def pieces(self, flat: torch.Tensor) -> zip:
        """Each parameter with its numbers in a vector (n,), a view."""
        return zip(self.parameters, flat.split([p.numel() for p in self.parameters]), strict=True)

    def part(self, flat: torch.Tensor, wire: Wire) -> torch.Tensor:
        """This rank's part of a vector (n,), a view."""
        return flat.tensor_split(wire.size)[wire.rank]

    def take_gradients(self) -> torch.Tensor:
        """The parameters' gradients, (n,), which they give up; 0 for one that had no part in the
        loss.
        """
        flat = self.weights.new_zeros(self.weights.numel())
        for p, place in self.pieces(flat):
            if p.grad is not None:
                place.copy_(p.grad.to_dense().flatten())  # an embedding's may be sparse
                p.grad = None
        self.awaited = set(self.parameters)
        return flat

    def free(self) -> None:
        """Gives the memory of ``weights`` back, and with it that of the parameters."""
        self.weights.untyped_storage().resize_(0)
        for p in self.parameters:
            p.data = self.nothing.expand(p.shape)

    def make_room(self) -> None:
        """The same memory again, with anything in it."""
        self.weights.untyped_storage().resize_(self.weights.nbytes)
        for p, view in self.pieces(self.weights):
            p.data = view.view(p.shape)

    @property
    def is_here(self) -> bool:
        return self.weights.untyped_storage().nbytes() == self.weights.nbytes


def units_of(module: torch.nn.Module, modules: Sequence[torch.nn.Module]) -> list[Unit]:
    """A unit for what none of the ``modules`` has, if there is such, and then one for each of
    them.
    """
    names = {part: name for name, part in module.named_modules()}
    owner: dict[torch.nn.Parameter, str] = {}
    of: list[tuple[str, torch.nn.Module, dict]] = []
    for part in modules:
        if part not in names:
            raise ValueError(f"units has a {type(part).__name__} that is no part of the module")
        inside = set(part.modules())
        others = [(m, f"{place}.") for m, place in names.items() if m not in inside]
        there = {
            p: (at + n).strip(".") for m, at in others for n, p in m.named_parameters("", False)
        }
        mine = {
            f"{names[part]}.{n}".strip("."): p
            for n, p in part.named_parameters()
            if p.requires_grad
        }
        for name, p in mine.items():
            if second := owner.get(p, there.get(p)):
                wanted = "wanted it in one unit: leave both modules out"
                raise ValueError(f"the parameter {name} is {second} too; {wanted}")
            owner[p] = name
        of += [(names[part], part, mine)] if mine else []
    if rest := {n: p for n, p in module.named_parameters() if p.requires_grad and p not in owner}:
        of.insert(0, ("the rest", module, rest))
    for name, _, mine in of:
        kinds = {(p.dtype, p.device) for p in mine.values()}
        if len(kinds) != 1:
            raise ValueError(f"the unit {name!r} has parameters of {kinds}; wanted one kind")
    return [Unit(*entry) for entry in of]
