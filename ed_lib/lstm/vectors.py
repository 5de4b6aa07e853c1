"""What the CPU's ladder is made of, for functions that Numba compiles: tanh and σ in vectors, products whose
sums stay in registers.

Numba keeps machine code, and does not look whether a function that it calls, from another file, has changed:
after a change here delete ``__pycache__``.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload

F = np.float32  # numbers in the compiled code keep this type
PROCESSOR = cpu_target.target_context.codegen().magic_tuple()[2]  # what it can, or what NUMBA_CPU_NAME says
VNNI = "+avx512vnni" in PROCESSOR
LANES, ROWS = (16, 4) if "+avx512f" in PROCESSOR else (8, 2)  # numbers in a vector, and samples at once
FAST: dict[str, Any] = dict(fastmath={"contract", "nsz"}, error_model="numpy", cache=True)


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


C2, C3, C4, C5, C6, C7 = [F(1 / np.prod(np.arange(1.0, n + 1))) for n in range(2, 8)]  # 1 / n!


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
def product(x, w, out, scale):
    """out (R, 4 LANES) += x (R, K) w (K, 4 LANES); of bytes, which x and w hold by four in an int32, times
    scale (4 LANES,).
    """
    whole = len(x) // ROWS * ROWS
    for row in range(0, whole, ROWS):
        some_rows(x, row, w, out, scale)
    for row in range(whole, len(x)):
        one_row(x, row, w, out, scale)


def tile(rows: int) -> Any:
    """``product`` for so many rows from ``row`` on: their sums stay in registers over all of k, four for a
    row, and a weight that is read serves all rows. Bytes, of x from 0 to 255, of w from −128 to 127, are
    multiplied and added by four in each lane, by ``vpdpbusd``.
    """

    @intrinsic
    def multiply(typing, x, row, w, out, scale):
        def emit(context, builder, signature, arguments):
            def array(n):
                return context.make_array(signature.args[n])(context, builder, arguments[n])

            def vector(n, *indices, lanes=LANES):  # a pointer to so many numbers of the n-th argument
                place = cgutils.get_item_pointer(context, builder, signature.args[n], array(n), indices)
                return builder.bitcast(place, ir.VectorType(place.type.pointee, lanes).as_pointer())

            def load(*where):
                value = builder.load(vector(*where))
                value.align = 4
                return value

            number, size = context.get_value_type(x.dtype), arguments[1].type
            lanes, few = ir.VectorType(number, LANES), isinstance(number, ir.IntType)
            name = "llvm.x86.avx512.vpdpbusd.512" if few else f"llvm.fmuladd.v{LANES}f{x.dtype.bitwidth}"
            call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(lanes, 3 * [lanes]), name)
            at = [builder.add(arguments[1], size(n)) for n in range(rows)]
            gates = [size(gate * LANES) for gate in range(4)]
            zero, first = ir.Constant(lanes, None), ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in gates] for _ in at]  # LLVM: registers
            count = builder.extract_value(array(2).shape, 0)
            with cgutils.for_range(builder, count) as k:
                four = [load(2, k.index, gate) for gate in gates]
                for r, totals in zip(at, sums, strict=True):
                    one = builder.load(vector(0, r, k.index, lanes=1))
                    every = builder.shuffle_vector(one, one, first)  # x[r, k] in all lanes
                    for weight, total in zip(four, totals, strict=True):
                        old = builder.load(total)
                        terms = (old, every, weight) if few else (every, weight, old)
                        builder.store(builder.call(call, terms), total)
            for r, totals in zip(at, sums, strict=True):
                for gate, total in zip(gates, totals, strict=True):
                    value = builder.load(total)
                    if few:
                        each = load(4, gate)
                        value = builder.fmul(builder.sitofp(value, each.type), each)
                    value = builder.fadd(load(3, r, gate), value)
                    builder.store(value, vector(3, r, gate)).align = 4
            return context.get_dummy_value()

        return types.none(x, types.intp, w, out, scale), emit

    return multiply


some_rows, one_row = tile(ROWS), tile(1)
