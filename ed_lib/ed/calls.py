"""Which calls a piece of code makes on whole arrays: each is a launch on a GPU, and has a price on a CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np


class Logged(np.ndarray):
    """A NumPy array that writes down, in ``Logged.calls``, the name of each call that works on it, and the
    shape of what it made. What is made is such an array again: ``array.view(Logged)`` makes the first one.
    """

    __module__ = "numpy"  # ed_lib asks which library an array comes from
    calls: list[tuple[str, tuple[int, ...]]] = []

    def log(self, name: str, function: Callable, *inputs: Any, **options: Any) -> "Logged":
        """Calls ``function`` on plain arrays, and writes it down."""
        plain = lambda x: x.view(np.ndarray) if isinstance(x, Logged) else x  # noqa: E731
        if "out" in options:  # += writes into what is there
            options["out"] = tuple(map(plain, options["out"]))
        result = np.asarray(function(*map(plain, inputs), **options)).view(Logged)
        Logged.calls.append((name, result.shape))
        return result

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return self.log(ufunc.__name__, getattr(ufunc, method), *inputs, **options)

    def __array_function__(self, function, types, inputs, options):
        return self.log(function.__name__, function, *inputs, **options)

    # one call each, though NumPy's methods make several
    def sum(self, *axes: int) -> "Logged":  # type: ignore[override]
        return self.log("sum", np.sum, self, *axes)

    def mean(self, *axes: int, **options: bool) -> "Logged":  # type: ignore[override]
        return self.log("mean", np.mean, self, *axes, **options)
