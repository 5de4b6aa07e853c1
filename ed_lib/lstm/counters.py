"""What a rung of the ladder gives the device to do: products, pointwise launches, and the bytes
they touch. Counted by watching PyTorch's dispatcher, from no formula.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Of matrices; "baddbmm" is of a batch of them, added to something. In place they end in "_".
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addbmm"}
# Memory, and no work. Views are free as well.
FREE = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


@dataclass
class Counts:
    """``bytes`` are summed over the launches."""

    products: int = 0  # of matrices
    pointwise: int = 0  # all other launches, copies among them
    bytes: int = 0

    @property
    def launches(self) -> int:
        return self.products + self.pointwise


def count_work(function: Callable) -> Counts:
    """The :class:`Counts` of one call of ``function()``.

    A launch is an operator of PyTorch's that computes; one of ours, such as ``ed_lib::lstm_cell``,
    is one, whatever it runs here.
    """
    with _Watch() as watch:
        function()
    return watch.counts


class _Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = Counts()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        # "aten::mm.out" → "mm"
        name = function.name().split("::")[1].split(".")[0]
        if name in FREE or function.is_view:
            return result
        if name.removesuffix("_") in PRODUCTS:
            self.counts.products += 1
        else:
            self.counts.pointwise += 1
        self.counts.bytes += _touched(function, args, kwargs, result)
        return result


def _touched(function, args, kwargs, result):
    """Bytes that an operator reads and writes, by its schema. An argument that is changed in place
    is both; one that is only written stands among the keywords, as ``out`` does, or is the target
    of a copy.
    """
    read: list = []
    written: list = []
    is_copy = function.name().startswith("aten::copy_")
    for n, argument in enumerate(function._schema.arguments):
        given = args[n] if n < len(args) else kwargs.get(argument.name)
        tensors = tree_leaves(given)
        is_changed = argument.alias_info is not None and argument.alias_info.is_write
        is_only_written = is_changed and (argument.kwarg_only or is_copy)
        if is_changed:
            written += tensors
        if not is_only_written:
            read += tensors
    # What changes no argument writes its result.
    moved = read + (written or tree_leaves(result))
    return sum(tensor.nbytes for tensor in moved if isinstance(tensor, torch.Tensor))
