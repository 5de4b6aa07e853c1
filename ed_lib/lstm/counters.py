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
    """``products``: matrix products; ``pointwise``: all other launches, copies among them; ``bytes``: the sum
    over launches of what each reads and writes, an array once a launch.
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
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            once = {(tensor.data_ptr(), tensor.shape): tensor.nbytes for tensor in tensors}
            self.counts.bytes += sum(once.values())
        return result
