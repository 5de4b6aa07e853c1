"""A barrier of threads in compiled code: none goes on before all have come, and what each wrote is
seen.
"""

from numba import types
from numba.extending import intrinsic

from ed_lib.compiled import cached
from ed_lib.registers import FAST


@cached(**FAST)
def barrier(n, step, counters, patience):
    """Says that thread n has done ``step``, and waits until all have; False if one does not
    come.
    """
    # each thread has a counter of its own, since additions to one counter would wait in turn
    store_release(counters[n], step)
    for other in range(len(counters)):
        looks = 0
        # it looks without a rest, since to sleep and be woken takes longer than a step
        while load_acquire(counters[other]) < step:
            looks += 1
            if looks > patience:
                return False
    return True


@intrinsic
def store_release(typing, counter, value):
    """counter[0] = value, after all that was written before it. counter: int64."""

    def emit(context, builder, signature, arguments):
        place = context.make_array(counter)(context, builder, arguments[0]).data
        builder.store_atomic(arguments[1], place, "release", 8)
        return context.get_dummy_value()

    return types.none(counter, types.int64), emit


@intrinsic
def load_acquire(typing, counter):
    """counter[0], before all that is read after it."""

    def emit(context, builder, signature, arguments):
        place = context.make_array(counter)(context, builder, arguments[0]).data
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(counter), emit
