"""Parameters that are sent together: side by side in a vector, of which each rank owns a part.

Letters: p ranks, n numbers in a unit. Part r is ``tensor_split(p)[r]``: the first n mod p parts have
one more, and with more ranks than numbers some are empty.
"""

from collections.abc import Sequence

import torch

from ed_lib.parallel.ranks.collectives import Wire


class Unit:
    """The parameters that a module trains, and that no other unit has, in one vector ``weights`` (n,).

    They become views of it. ``kept``: what this rank's optimizer updates, all of ``weights`` or a part.
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


def cut(module: torch.nn.Module, modules: Sequence[torch.nn.Module]) -> list[Unit]:
    """A unit for what none of the ``modules`` has, if there is such, and then one for each of them, in order.

    ValueError where a parameter is in two of them, one of them is not in ``module`` or trains nothing, or a
    unit's parameters differ in dtype or device.
    """
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
            raise ValueError(
                f"the unit {name!r} has parameters of {sorted(map(str, kinds))}; wanted one kind"
            )
    return [Unit(*entry) for entry in of]
