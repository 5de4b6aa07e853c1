"""A matrix product whose sums stay in registers, for compiled code on a CPU: what a BLAS does
inside, without its call and its copies. ``ed.cpu`` and ``lstm.cpu`` are built on it.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

PROCESSOR = cpu_target.target_context.codegen().magic_tuple()[2]  # or NUMBA_CPU_FEATURES
VNNI = "+avx512vnni" in PROCESSOR
LANES, ROWS = (
    (16, 4) if "+avx512f" in PROCESSOR else (8, 2)
)  # numbers in a vector, and rows at once
WIDE = 4 * LANES  # columns at once
FAST: dict[str, Any] = dict(fastmath={"contract", "nsz"}, error_model="numpy", cache=True)


@njit(**FAST)
def product(x, w, start, out, scale=None, ahead=None):
    """out = start + x w: (R, n), x (R, K), w (K, n), with n columns, WIDE or LANES. Of bytes, which
    x and w hold by four in an int32, the product is taken times scale (n,). start may be out. ahead
    (K, n): what the next call reads; it comes into the cache meanwhile.
    """
    whole = len(x) // ROWS * ROWS
    if w.shape[1] == WIDE:
        for row in range(0, whole, ROWS):
            some_rows(x, row, w, start, out, scale, ahead)
        for row in range(whole, len(x)):
            one_row(x, row, w, start, out, scale, ahead)
    else:
        for row in range(0, whole, ROWS):
            some_narrow(x, row, w, start, out, scale, ahead)
        for row in range(whole, len(x)):
            one_narrow(x, row, w, start, out, scale, ahead)


def tile(rows: int, vectors: int) -> Any:  # noqa: C901
    """``product`` for so many rows from ``row`` on: their sums stay in registers over all of k, so
    many for a row, and a weight that is read serves all rows. Bytes, of x from 0 to 255, of w from
    −128 to 127, are multiplied and added by four in each lane, by ``vpdpbusd``. Where the sums will
    go is fetched first, and of ``ahead`` a vector with each k: memory takes longer to answer than a
    tile to compute.
    """

    @intrinsic
    def multiply(typing, x, row, w, start, out, scale, ahead):  # noqa: C901
        def emit(context, builder, signature, arguments):  # noqa: C901
            def vector(
                n, *indices, lanes=LANES
            ):  # a pointer to so many numbers of the n-th argument
                array = context.make_array(signature.args[n])(context, builder, arguments[n])
                place = cgutils.get_item_pointer(
                    context, builder, signature.args[n], array, indices
                )
                return builder.bitcast(place, ir.VectorType(place.type.pointee, lanes).as_pointer())

            def load(*where):
                return builder.load(vector(*where), align=4)

            def fetch(write, place):
                kind = ir.FunctionType(ir.VoidType(), [byte, *3 * [word]])
                function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
                builder.call(
                    function, [builder.bitcast(place, byte), word(write), word(3), word(1)]
                )

            byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
            number, size = context.get_value_type(x.dtype), arguments[1].type
            lanes, few = ir.VectorType(number, LANES), isinstance(number, ir.IntType)
            name = (
                "llvm.x86.avx512.vpdpbusd.512"
                if few
                else f"llvm.fmuladd.v{LANES}f{x.dtype.bitwidth}"
            )
            call = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(lanes, 3 * [lanes]), name
            )
            at = [builder.add(arguments[1], size(n)) for n in range(rows)]
            columns = [size(n * LANES) for n in range(vectors)]
            zero, first = ir.Constant(lanes, None), ir.Constant(ir.VectorType(word, LANES), None)
            sums = [
                [cgutils.alloca_once_value(builder, zero) for _ in columns] for _ in at
            ]  # registers
            for r in at:
                for c in columns:
                    fetch(1, vector(4, r, c))
            w_array = context.make_array(w)(context, builder, arguments[2])
            x_array = context.make_array(x)(context, builder, arguments[0])
            all_rows = builder.extract_value(x_array.shape, 0)
            nth = builder.udiv(
                builder.mul(arguments[1], size(vectors)), all_rows
            )  # of ahead's vectors
            with cgutils.for_range(builder, builder.extract_value(w_array.shape, 0)) as k:
                weights = [load(2, k.index, c) for c in columns]
                if isinstance(ahead, types.Array):
                    fetch(0, vector(6, k.index, builder.mul(nth, size(LANES))))
                for r, totals in zip(at, sums, strict=True):
                    one = builder.load(vector(0, r, k.index, lanes=1))
                    every = builder.shuffle_vector(one, one, first)  # x[r, k] in all lanes
                    for weight, total in zip(weights, totals, strict=True):
                        old = builder.load(total)
                        terms = (old, every, weight) if few else (every, weight, old)
                        builder.store(builder.call(call, terms), total)
            for r, totals in zip(at, sums, strict=True):
                for c, total in zip(columns, totals, strict=True):
                    value = builder.load(total)
                    if few:
                        each = load(5, c)
                        value = builder.fmul(builder.sitofp(value, each.type), each)
                    builder.store(builder.fadd(load(3, r, c), value), vector(4, r, c), align=4)
            return context.get_dummy_value()

        return types.none(x, types.intp, w, start, out, scale, ahead), emit

    return multiply


some_rows, one_row, some_narrow, one_narrow = tile(ROWS, 4), tile(1, 4), tile(ROWS, 1), tile(1, 1)
