"""Arguments, checked at the doors: what a reader calls from a cell. Each error names the argument,
what came and what was wanted. Inside, nothing is checked twice.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

NUMBERS = (int, float, np.integer, np.floating)


def choice(name: str, value: Any, choices: Collection) -> None:
    """ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        wanted = ", ".join(map(repr, choices))
        raise ValueError(f"{name} is {value!r}; wanted one of {wanted}")


def count(name: str, value: Any, least: int = 1) -> int:
    """``value`` as an int. TypeError unless it is a whole number, ValueError if it is below
    ``least``.
    """
    # True is an int to Python, and a slip here.
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; wanted a whole number")
    if value < least:
        raise ValueError(f"{name} is {value}; wanted at least {least}")
    return int(value)


def positive(name: str, value: Any) -> float:
    """``value`` as a float. TypeError unless it is a number, ValueError unless it is finite and
    above 0.
    """
    _check_number(name, value)
    # Said this way round, NaN does not pass.
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}; wanted a finite number above 0")
    return float(value)


def amount(name: str, value: Any) -> float:
    """``value`` as a float. TypeError unless it is a number, ValueError unless it is finite and at
    least 0.
    """
    _check_number(name, value)
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} is {value}; wanted a finite number, at least 0")
    return float(value)


def _check_number(name, value):
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        raise TypeError(f"{name} is {value!r}; wanted a number")


def function(name: str, value: Any) -> None:
    """TypeError unless ``value`` can be called: ``f()`` is a slip for ``f``."""
    if not callable(value):
        raise TypeError(f"{name} is a {type(value).__name__}; wanted a function to call")


def iterator(name: str, value: Any, example: str) -> Iterator:
    """``iter(value)``. TypeError for what cannot be iterated; ``example`` is what can."""
    try:
        return iter(value)
    except TypeError as error:
        kind = type(value).__name__
        raise TypeError(f"{name} is a {kind}; wanted several, such as {example}") from error


def shape(name: str, shape: Sequence[int], wanted: Sequence[int | str]) -> None:
    """ValueError unless ``shape`` fits ``wanted``: lengths, and letters for axes of any length ≥
    1.
    """
    fits = len(shape) == len(wanted)
    for found, length in zip(shape, wanted, strict=False):
        fits = fits and (found >= 1 if isinstance(length, str) else found == length)
    if not fits:
        text = ", ".join(map(str, wanted))
        # A tuple of one is written with a comma.
        text += "," if len(wanted) == 1 else ""
        raise ValueError(f"{name} has the shape {shape}; wanted ({text})")
