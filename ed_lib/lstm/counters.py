"""What a rung gives the device to do: its products, its pointwise launches and the bytes they touch, counted
by watching PyTorch's dispatcher; nothing here computes them from a formula.
"""

from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
FREE = {"empty", "empty_like", "new_empty"}  # memory, and no work; views are free as well


@dataclass
class Counts:
    """``products``: matrix products; ``pointwise``: all other launches, copies among them; ``bytes``: what
    they read and write, summed over the launches.
    """

    products: int = 0
    pointwise: int = 0
    bytes: int = 0

    @property
    def launches(self):
        """Products and pointwise launches together."""
        return self.products + self.pointwise


def count(function):
    """The :class:`Counts` of one call of ``function()``.

    A launch is an operator of PyTorch's that computes; on a GPU a few of them take more than one kernel. An
    operator of ours, such as ``ed_lib::lstm_cell``, is one, whatever it runs here.
    """
    with _Watch() as watch:
        function()
    return watch.counts


class _Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = Counts()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.name().split("::")[1].split(".")[0]  # "aten::mm.out" → "mm"
        if name not in FREE and not function.is_view:
            self.counts.products += name in PRODUCTS
            self.counts.pointwise += name not in PRODUCTS
            self.counts.bytes += _touched(function, args, kwargs or {}, result)
        return result


def _touched(function, args, kwargs, result):
    """Bytes that an operator reads and writes, by its schema. An argument that is changed in place is both;
    one that is only written stands among the keywords, as ``out`` does, or is the target of a copy.
    """
    read, written = [], []
    for n, argument in enumerate(function._schema.arguments):
        tensors = tree_leaves(args[n] if n < len(args) else kwargs.get(argument.name))
        changed = argument.alias_info is not None and argument.alias_info.is_write
        written += tensors if changed else []
        only_written = changed and (argument.kwarg_only or function.name().startswith("aten::copy_"))
        read += [] if only_written else tensors
    if not written:
        written = tree_leaves(result)
    return sum(tensor.nbytes for tensor in read + written if isinstance(tensor, torch.Tensor))
