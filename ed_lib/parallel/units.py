"""The parameters of a module as a few flat vectors, of which each rank can own a part: FSDP's
units.

n: the numbers of a unit. Y. Zhao and others, "PyTorch FSDP" (2023), section 3.2.
"""

from collections.abc import Mapping, Sequence
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
        self.name = name
        self.module = module
        self.named = named
        self.parameters = list(named.values())
        self.weights = torch.cat([p.detach().flatten() for p in self.parameters])  # (n,)
        self.nothing = self.weights.new_full((), torch.nan)
        self.kept: Any = self.weights
        # those whose gradients the backward pass has not reached yet
        self.awaited = set(self.parameters)
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
                # an embedding's may be sparse
                place.copy_(p.grad.to_dense().flatten())
                p.grad = None
        self.awaited = set(self.parameters)
        return flat

    def free(self) -> None:
        """Gives the memory of ``weights`` back, and with it that of the parameters."""
        # the tensor stays: what autograd has kept of it finds its numbers once they are back
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

    ValueError for one that is no part of ``module``, for a parameter that is in two of them or
    outside of its own as well, and for one that has parameters of several dtypes or devices.
    """
    names = {part: name for name, part in module.named_modules()}
    owned: dict[torch.nn.Parameter, str] = {}
    units: list[tuple[str, torch.nn.Module, dict[str, torch.nn.Parameter]]] = []
    for part in modules:
        if part not in names:
            raise ValueError(f"units has a {type(part).__name__} that is no part of the module")
        taken = outside(part, names) | owned
        mine = trained(part, names[part])
        for name, p in mine.items():
            if p in taken:
                wanted = "wanted it in one unit: leave both modules out"
                raise ValueError(f"the parameter {name} is {taken[p]} too; {wanted}")
            owned[p] = name
        if mine:
            units.append((names[part], part, mine))
    rest = {name: p for name, p in trained(module).items() if p not in owned}
    if rest:
        # the first, since the whole module begins before its parts and ends after them
        units.insert(0, ("the rest", module, rest))
    for name, _, named in units:
        check_one_kind(name, named)
    return [Unit(*each) for each in units]


def trained(module: torch.nn.Module, name: str = "") -> dict[str, torch.nn.Parameter]:
    """{name: parameter} of what is trained of a module that is called ``name`` within another."""
    return {at: p for at, p in module.named_parameters(name) if p.requires_grad}


def outside(
    part: torch.nn.Module, names: Mapping[torch.nn.Module, str]
) -> dict[torch.nn.Parameter, str]:
    """{parameter: its name} of the modules in ``names`` that are not within ``part``."""
    inside = set(part.modules())
    found = {}
    for module, name in names.items():
        if module not in inside:
            # not recursive: what is further inside has an entry of its own, and may be in part
            for at, p in module.named_parameters(name, recurse=False):
                found[p] = at
    return found


def check_one_kind(name: str, named: Mapping[str, torch.Tensor]) -> None:
    """ValueError unless a unit's parameters can lie in one vector."""
    kinds = {(p.dtype, p.device) for p in named.values()}
    if len(kinds) != 1:
        raise ValueError(f"the unit {name!r} has parameters of {kinds}; wanted one kind")
