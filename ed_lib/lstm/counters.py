"""What a rung gives the device to do: its products, its pointwise launches, the bytes they touch, and how
often the host waits for an answer. Counted by watching PyTorch's dispatcher, from no formula.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
FREE = {"empty", "empty_like", "new_empty"}  # memory, and no work; views are free as well
ANSWERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}  # of operators that tell the host
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}  # their shapes, if an index is a mask


@dataclass
class Counts:
    """``bytes`` are summed over the launches; ``waits``: how many of these the host waits for."""

    products: int = 0  # of matrices
    pointwise: int = 0  # all other launches, copies among them
    bytes: int = 0
    waits: int = 0

    @property
    def launches(self) -> int:
        return self.products + self.pointwise


def count(function: Callable) -> Counts:
    """The :class:`Counts` of one call of ``function()``.

    A launch is an operator of PyTorch's that computes; one of ours, such as ``ed_lib::lstm_cell``, is one,
    whatever it runs here. The host waits for a number (``item``), for a shape that depends on the data
    (``nonzero``, a mask as an index), and for a copy between it and a GPU, unless that is ``non_blocking``.
    In a call with no tensor on a GPU the first two count on the CPU, which stands for one. What waits without
    an operator, such as ``torch.cuda.synchronize``, is not seen.
    """
    with _Watch() as watch:
        function()
    return watch.counts


class _Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts, self.gpu = Counts(), False  # gpu: whether a tensor was seen on one

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name = function.name().split("::")[1].split(".")[0]  # "aten::mm.out" → "mm"
        devices = {t.device.type for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)}
        if devices - {"cpu"} and not self.gpu:
            self.gpu, self.counts.waits = True, 0  # what was seen on the CPU does stay there
        if name not in FREE and not function.is_view:
            self.counts.products += name in PRODUCTS
            self.counts.pointwise += name not in PRODUCTS
            self.counts.bytes += _touched(function, args, kwargs, result)
            if not self.gpu or devices - {"cpu"}:
                self.counts.waits += _waits(function, name, args, kwargs, devices)
        return result


def _waits(function, name, args, kwargs, devices):
    if name in ("copy_", "_to_copy"):
        non_blocking = kwargs.get("non_blocking", name == "copy_" and len(args) > 2 and args[2])
        return len(devices) > 1 and not non_blocking
    if name in INDEXING:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return not ANSWERS.isdisjoint(function.tags)


def _touched(function, args, kwargs, result):
    """Bytes that an operator reads and writes, by its schema. An argument that is changed in place is both;
    one that is only written stands among the keywords, as ``out`` does, or is the target of a copy.
    """
    read, written = [], []
    for n, argument in enumerate(function._schema.arguments):
        tensors = tree_leaves(args[n] if n < len(args) else kwargs.get(argument.name))
        changed = argument.alias_info is not None and argument.alias_info.is_write
        written += tensors if changed else []
        if not changed or not (argument.kwarg_only or function.name().startswith("aten::copy_")):
            read += tensors
    moved = read + (written or tree_leaves(result))
    return sum(tensor.nbytes for tensor in moved if isinstance(tensor, torch.Tensor))
