"""What one thread tells another through memory, for functions that Numba compiles.

A counter that is stored with *release* and loaded with *acquire*: who has seen its new value sees all that
was written before it was stored. An ordinary store promises nothing of the kind, and an ordinary load in a
waiting loop is done once, before the loop.
"""

import contextlib
import os
from types import ModuleType
from typing import Any

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


def _address(context, builder, array_type, array, index):
    made = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, made, [index])


@intrinsic
def store_release(typing: Any, counters: Any, index: Any, value: Any) -> Any:
    """counters[index] = value, after all that was written before. counters: an int64 array."""

    def emit(context, builder, signature, arguments):
        place = _address(context, builder, signature.args[0], *arguments[:2])
        builder.store_atomic(arguments[2], place, "release", 8)
        return context.get_dummy_value()

    return types.none(counters, types.intp, types.int64), emit


@intrinsic
def load_acquire(typing: Any, counters: Any, index: Any) -> Any:
    """counters[index], before all that is read after. counters: an int64 array."""

    def emit(context, builder, signature, arguments):
        place = _address(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(counters, types.intp), emit


@intrinsic
def as_float32(typing: Any, bits: Any) -> Any:
    """The float32 that an int32's bits are."""

    def emit(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.int32), emit


@njit
def arrived(counters, who, step, patience):
    """Whether thread ``who`` has come to ``step``, after at most so many looks. counters (threads, n): a row,
    and with it a cache line, for each.
    """
    for _ in range(patience):
        if load_acquire(counters[who], 0) >= step:
            return True
    return False


def compiled_anew(file: str, *used: ModuleType) -> None:
    """Makes Numba compile what ``file`` holds once more, if a module that it uses is younger.

    Numba keeps machine code as long as the file of the outer function is as old as it was, and does not look
    at the files of the functions that this one calls. Called before the first function of the file.
    """
    youngest = max(os.path.getmtime(str(module.__file__)) for module in used)
    if youngest > os.path.getmtime(file):
        with contextlib.suppress(OSError):  # a folder that is read-only
            os.utime(file)
