"""The parameters of a module as a few flat vectors, of which each rank can own a part: FSDP's
units.

n: the numbers of a unit. Y. Zhao and others, "PyTorch FSDP" (2023), section 3.2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ed_lib.parallel.collectives import Wire, is_expanded

# What can be asked of a tensor, or told it, without reading its numbers.
METHODS = (Tensor.dim, Tensor.numel, Tensor.untyped_storage)
HOOK = Tensor.register_post_accumulate_grad_hook
PROPERTIES = ("shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "grad")
GET = [getattr(Tensor, name).__get__ for name in PROPERTIES]
SET = [getattr(Tensor, name).__set__ for name in ("grad",)]
ALLOWED = {*METHODS, HOOK, *GET, *SET}
# where a parameter is here whenever it is used
WANTED = "wanted it in no unit, and used while the whole module computes"


class Away(nn.Parameter):
    """A parameter whose numbers are on other ranks: to read them is an error that names it.

    Its shape, its gradient and its hooks it keeps: this is the class that it has until its numbers
    are back. So whoever uses it is stopped, by whichever reference.
    """

    error = ""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """PyTorch calls it in place of each function that is called on such a parameter."""
        if function in ALLOWED:
            return super().__torch_function__(function, types, args, kwargs or {})
        # it may stand in a list, as of torch.cat
        for given in tree_leaves((args, kwargs)):
            if isinstance(given, Away):
                raise RuntimeError(given.error)
        return NotImplemented


class Unit:
    """The parameters that a module trains, and no other unit has, as views of one vector
    ``weights`` (n,).

    named: {name in the whole module: parameter}. ``kept``: what this rank's optimizer updates, all
    of ``weights`` or this rank's part of it. While ``weights`` has no memory, ``is_here`` is False,
    and each parameter is :class:`Away`.
    """

    def __init__(self, name: str, module: nn.Module, named: dict[str, nn.Parameter]):
        self.name = name
        self.module = module
        self.named = named
        self.parameters = list(named.values())
        flat = [p.detach().flatten() for p in self.parameters]
        self.weights = torch.cat(flat)  # (n,)
        # autograd reads a parameter by no call that could be stopped; then it is NaN throughout
        self.nothing = self.weights.new_full((), torch.nan)
        self.classes = [type(p) for p in self.parameters]
        self.is_here = False
        self.kept: Any = self.weights
        # those whose gradients the backward pass has not reached yet
        self.awaited = set(self.parameters)
        self.make_room()

    def pieces(self, flat: Tensor) -> zip:
        """Each parameter with its numbers in a vector (n,), a view."""
        sizes = [p.numel() for p in self.parameters]
        return zip(self.parameters, flat.split(sizes), strict=True)

    def part(self, flat: Tensor, wire: Wire) -> Tensor:
        """This rank's part of a vector (n,), a view."""
        parts = flat.tensor_split(wire.size)
        return parts[wire.rank]

    def take_gradients(self) -> Tensor:
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
        if not self.is_here:
            return
        self.is_here = False
        # the tensor stays: what autograd has kept of it finds its numbers once they are back
        self.weights.untyped_storage().resize_(0)
        for at, p in self.named.items():
            p.data = self.nothing.expand(p.shape)
            p.__class__ = Away
            error = f"{at} is used outside of its unit {self.name!r}; {WANTED}"
            p.error = error  # type: ignore[attr-defined]

    def make_room(self) -> None:
        """The same memory again, with anything in it."""
        self.is_here = True
        self.weights.untyped_storage().resize_(self.weights.nbytes)
        for p, kind in zip(self.parameters, self.classes, strict=True):
            p.__class__ = kind
        for p, view in self.pieces(self.weights):
            p.data = view.view(p.shape)

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in the memory of ``weights``, as a view of a parameter does."""
        # a sparse one has no memory of its own to ask for, and of no numbers there is no view
        if tensor.layout is not torch.strided or self.weights.nbytes == 0:
            return False
        ours = self.weights.untyped_storage()
        theirs = tensor.untyped_storage()
        return ours.data_ptr() == theirs.data_ptr()


def units_of(module: nn.Module, modules: Sequence[nn.Module]) -> list[Unit]:
    """A unit for what none of the ``modules`` has, if there is such, and then one for each of
    them.

    ValueError for one that is no part of ``module``, for a parameter that is in two of them or
    outside of its own as well, and for one that has parameters of several dtypes or devices.
    """
    names = {part: name for name, part in module.named_modules()}
    # those of the units so far, and their names
    owned: dict[nn.Parameter, str] = {}
    units: list[tuple[str, nn.Module, dict[str, nn.Parameter]]] = []
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


def trained(module: nn.Module, name: str = "") -> dict[str, nn.Parameter]:
    """{name: parameter} of what is trained of a module that is called ``name`` within another."""
    return {at: p for at, p in module.named_parameters(name) if p.requires_grad}


def outside(part: nn.Module, names: Mapping[nn.Module, str]) -> dict[nn.Parameter, str]:
    """{parameter: its name} of the modules in ``names`` that are not within ``part``."""
    inside = set(part.modules())
    found = {}
    for module, name in names.items():
        if module not in inside:
            # not recursive: what is further inside has an entry of its own, and may be in part
            for at, p in module.named_parameters(name, recurse=False):
                found[p] = at
    return found


def check_memory(named: Mapping[str, Tensor]) -> None:
    """ValueError unless each tensor has memory for all its numbers: rank 0's are put there."""
    for name, tensor in named.items():
        if tensor.layout is not torch.strided:
            raise ValueError(f"{name} has the layout {tensor.layout}; wanted a dense one")
        if is_expanded(tensor):
            raise ValueError(f"{name} is expanded; wanted one with all its numbers: its clone()")


def check_one_kind(name: str, named: Mapping[str, Tensor]) -> None:
    """ValueError unless a unit's parameters can lie in one vector."""
    kinds = {(p.dtype, p.device) for p in named.values()}
    if len(kinds) != 1:
        raise ValueError(f"the unit {name!r} has parameters of {kinds}; wanted one kind")
