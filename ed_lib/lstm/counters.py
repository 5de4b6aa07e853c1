"""What a rung of the ladder gives the device to do: products, pointwise launches, and the bytes
they touch. Counted by watching PyTorch's dispatcher, from no formula.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ed_lib.diagnose import watching

# Of matrices; "baddbmm" is of a batch of them, added to something. In place they end in "_".
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addbmm"}


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
    calls = watching.watch(function)
    products = sum(call.operator.removesuffix("_") in PRODUCTS for call in calls)
    return Counts(products, len(calls) - products, sum(call.bytes for call in calls))
