"""What the CPU's ladder is made of, for functions that Numba compiles: products whose sums stay in registers,
tanh and σ in vectors, and a barrier of threads; and a linear recurrence.

Numba keeps machine code, and does not look whether a function that it calls, from another file, has changed:
after a change here delete ``__pycache__``.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload

F = np.float32  # numbers in the compiled code keep this type
PROCESSOR = cpu_target.target_context.codegen().magic_tuple()[2]  # what it can, or what NUMBA_CPU_NAME says
VNNI = "+avx512vnni" in PROCESSOR
LANES, ROWS = (16, 4) if "+avx512f" in PROCESSOR else (8, 2)  # numbers in a vector, and samples at once
FAST: dict[str, Any] = dict(fastmath={"contract", "nsz"}, error_model="numpy", cache=True)
C2, C3, C4, C5, C6, C7 = [F(1 / np.prod(np.arange(1.0, n + 1))) for n in range(2, 8)]  # 1 / n!


@njit(**FAST)
def sigmoid(x):
    return F(1) / (F(2) + expm1(-x))


@njit(**FAST)
def tanh(x):
    twice = expm1(x + x)
    return twice / (twice + F(2))


def expm1(x):
    """e^x − 1, of which small x keep all digits; in float64 the library's."""


@overload(expm1)
def _(x):
    return (lambda x: series(x)) if x == types.float32 else (lambda x: np.expm1(min(x, 700.0)))


@njit(**FAST)
def series(x):
    """e^x − 1 = 2^n (e^f − 1) + 2^n − 1 with n = round(x / ln 2), f = x − n ln 2, for x from −87 to 87, in
    operations that a vector register does for all its numbers at once.
    """
    x = F(-87) if x < F(-87) else F(87) if x > F(87) else x  # NaN stays
    shifted = np.float32(x * F(1 / np.log(2)) + F(1.5 * 2**23))  # rounds: n is in its last bits
    n = shifted - F(1.5 * 2**23)
    f = (x - n * F(0.693359375)) + n * F(2.12194440e-4)  # ln 2 in two parts, the first of few bits
    exponent = np.int32((shifted.view(np.int32) + 127) * 2**23)
    power = exponent.view(np.float32)  # 2^n
    return power * (f + f * f * (C2 + f * (C3 + f * (C4 + f * (C5 + f * (C6 + f * C7)))))) + (power - F(1))


@njit(**FAST)
def barrier(n, step, counters, patience):
    """Says that thread n has done ``step``, and waits until all have; False if one does not come."""
    store_release(counters[n], step)
    for other in range(len(counters)):
        looks = 0
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


@njit(**FAST)
def product(x, w, out, column, scale):
    """out (R, 4, P) += x (R, K) w (K, 4 LANES), in LANES columns of each gate from ``column`` on. For bytes,
    which x and w hold by four in an int32, times scale (4, P); else scale is None.
    """
    whole = len(x) // ROWS * ROWS
    for row in range(0, whole, ROWS):
        some_rows(x, row, w, out, column, scale)
    for row in range(whole, len(x)):
        one_row(x, row, w, out, column, scale)


def tile(rows: int) -> Any:
    """``product`` for so many rows from ``row`` on: their sums stay in registers over all of k, four for a
    row, and a weight that is read serves all rows. Bytes, of x from 0 to 255, of w from −128 to 127, are
    multiplied and added by four in each lane, by ``vpdpbusd``.
    """

    @intrinsic
    def multiply(typing, x, row, w, out, column, scale):
        def emit(context, builder, signature, arguments):
            def whole(n):
                return ir.Constant(arguments[1].type, n)

            def vector(argument, *indices, lanes=LANES):  # a pointer to so many numbers of an array
                kind = signature.args[argument]
                array = context.make_array(kind)(context, builder, arguments[argument])
                place = cgutils.get_item_pointer(context, builder, kind, array, indices)
                number = context.get_value_type((x if argument == 2 else kind).dtype)  # w is as x
                return builder.bitcast(place, ir.VectorType(number, lanes).as_pointer())

            def load(*where):
                value = builder.load(vector(*where))
                value.align = 4
                return value

            number = context.get_value_type(x.dtype)
            lanes, few = ir.VectorType(number, LANES), isinstance(number, ir.IntType)
            name = "llvm.x86.avx512.vpdpbusd.512" if few else f"llvm.fmuladd.v{LANES}f{x.dtype.bitwidth}"
            call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(lanes, 3 * [lanes]), name)
            at = [builder.add(arguments[1], whole(n)) for n in range(rows)]
            zero, first = ir.Constant(lanes, None), ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(4 * rows)]  # LLVM: in registers
            count = builder.extract_value(context.make_array(w)(context, builder, arguments[2]).shape, 0)
            with cgutils.for_range(builder, count) as k:
                four = [load(2, k.index, whole(gate * LANES)) for gate in range(4)]
                for n, r in enumerate(at):
                    one = builder.load(vector(0, r, k.index, lanes=1))
                    every = builder.shuffle_vector(one, one, first)  # x[r, k] in all lanes
                    for weight, total in zip(four, sums[4 * n : 4 * n + 4], strict=True):
                        old = builder.load(total)
                        terms = (old, every, weight) if few else (every, weight, old)
                        builder.store(builder.call(call, terms), total)
            for n, value in enumerate(map(builder.load, sums)):
                where = whole(n % 4), arguments[4]
                if few:
                    each = load(5, *where)
                    value = builder.fmul(builder.sitofp(value, each.type), each)
                total = builder.fadd(load(3, at[n // 4], *where), value)
                builder.store(total, vector(3, at[n // 4], *where)).align = 4
            return context.get_dummy_value()

        return types.none(x, types.intp, w, out, types.intp, scale), emit

    return multiply


some_rows, one_row = tile(ROWS), tile(1)


@njit(parallel=True, **FAST)
def scan(a, b, h, states):
    """A linear recurrence, states[t] = a[t] states[t − 1] + b[t], by threads that have columns of the state
    each: a, b and states (T, N), h (N,), the state before the first.
    """
    for n in prange(-(-h.size // 512)):
        scan_part(a, b, h, states, 512 * n)


@njit(**FAST)
def scan_part(a, b, h, states, first):
    """512 columns of it, or as many as there are."""
    last = min(first + 512, h.size)
    before = h[first:last]
    for t in range(len(a)):
        gain, gift, after = a[t, first:last], b[t, first:last], states[t, first:last]
        for j in range(last - first):
            after[j] = gain[j] * before[j] + gift[j]
        before = after
