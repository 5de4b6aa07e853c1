"""Arguments, checked at the doors: what a reader calls from a cell. Each error names the argument,
what came and what was wanted. Inside, nothing is checked twice.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np


def choice(name: str, value: Any, choices: Collection) -> None:
    """ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; wanted one of {', '.join(map(repr, choices))}")


def count(name: str, value: Any, least: int = 1) -> int:
    """``value`` as an int. TypeError unless it is a whole number, ValueError if it is below
    ``least``.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; wanted a whole number")
    if value < least:
        raise ValueError(f"{name} is {value}; wanted at least {least}")
    return int(value)


def positive(name: str, value: Any) -> float:
    """``value`` as a float. TypeError unless it is a number, ValueError unless it is finite and
    above 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r}; wanted a number")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}; wanted a finite number above 0")
    return float(value)


def shape(name: str, shape: Sequence[int], wanted: Sequence[int | str]) -> None:
    """ValueError unless ``shape`` fits ``wanted``: lengths, and letters for axes of any length ≥
    1.
    """
    fits = len(shape) == len(wanted) and all(
        n >= 1 if isinstance(w, str) else n == w for n, w in zip(shape, wanted, strict=True)
    )
    if not fits:
        text = ", ".join(map(str, wanted)) + ("," if len(wanted) == 1 else "")
        raise ValueError(f"{name} has the shape {shape}; wanted ({text})")
