"""A matrix product whose sums stay in registers, for compiled code on a CPU: what a BLAS does
inside, without its call and its copies. ``ed.ed_on_cpu`` and ``lstm.lstm_on_cpu`` are built on it.

``product_in_numpy`` says what ``product`` computes. A *tile* is what is computed at once: the sums
of a few rows (ROWS, or one) and a few vectors of columns (four, or one), as many as the processor
has registers for. They stay there over all of k, so that no sum is read or written in between; and
a weight that is read serves all rows. Numba writes no such loop by itself, so ``tile`` writes it as
instructions for LLVM.

Letters: R rows of x, K numbers in each, n columns of w.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from ed_lib.compiled import cached

PROCESSOR = cpu_target.target_context.codegen().magic_tuple()[2]  # or NUMBA_CPU_FEATURES
VNNI = "+avx512vnni" in PROCESSOR
# AVX-512 has registers twice as long as AVX2's, and twice as many
WIDEST = "+avx512f" in PROCESSOR
LANES = 16 if WIDEST else 8  # numbers in a vector
ROWS = 4 if WIDEST else 2  # at once
VECTORS = 4  # side by side in a tile
WIDE = VECTORS * LANES  # columns at once
# a product and a sum may become one instruction, and −0 be 0; the order of a sum stays
FAST: dict[str, Any] = dict(fastmath={"contract", "nsz"}, error_model="numpy")
BYTES = 4  # in an int32

# the places of a tile's arguments
X, ROW, W, START, OUT, SCALE, AHEAD = range(7)


def product_in_numpy(
    x: np.ndarray,
    w: np.ndarray,
    start: np.ndarray,
    out: np.ndarray,
    scale: np.ndarray | None = None,
    ahead: np.ndarray | None = None,
) -> None:
    """What ``product`` computes, in NumPy: out = start + x w; of bytes, times scale.

    x (R, K), w (K, n), start and out (R, n), in float32 or float64; x may have more columns, which
    are not read. Bytes lie in int32, four in each: x from 0 to 255, w from −128 to 127; then scale
    is (n,), in float32 like start and out.
    """
    x = x[:, : len(w)]
    if x.dtype != np.int32:
        out[:] = start + x @ w
        return
    # (R, K, 4) and (K, n, 4)
    x_bytes = np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, BYTES)
    w_bytes = np.ascontiguousarray(w).view(np.int8).reshape(*w.shape, BYTES)
    sums = np.einsum("rkb,knb->rn", x_bytes.astype(np.int32), w_bytes.astype(np.int32))
    out[:] = start + sums * scale


@cached(**FAST)
def product(x, w, start, out, scale=None, ahead=None):
    """As ``product_in_numpy``, for n columns, WIDE or LANES. start may be out. ahead (K, n): what
    the next call reads; it comes into the cache meanwhile.
    """
    # rows that fill tiles; those that are left go one by one
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


def tile(rows: int, vectors: int) -> Any:
    """``product`` for so many rows from ``row`` on, and so many vectors of columns."""

    @intrinsic
    def multiply(typing, x, row, w, start, out, scale, ahead):
        def emit(context, builder, signature, arguments):
            code = Code(context, builder, signature, arguments)
            size = arguments[ROW].type
            lines = [builder.add(arguments[ROW], size(n)) for n in range(rows)]
            columns = [size(n * LANES) for n in range(vectors)]
            prefetch_results(code, lines, columns)
            sums = accumulate(code, lines, columns)
            store_results(code, lines, columns, sums)
            return context.get_dummy_value()

        return types.none(x, types.intp, w, start, out, scale, ahead), emit

    return multiply


class Code:
    """What is written to: LLVM's builder, and the arguments of a tile as LLVM has them."""

    def __init__(self, context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any):
        self.context = context
        self.builder = builder
        self.kinds = signature.args
        self.arguments = arguments
        dtype = self.kinds[X].dtype
        self.number = context.get_value_type(dtype)
        self.integers = isinstance(self.number, ir.IntType)
        self.vector = ir.VectorType(self.number, LANES)
        self.bits = dtype.bitwidth

    def multiply_and_add(self, x: ir.Value, w: ir.Value, total: ir.Value) -> ir.Value:
        """total + x w, lane by lane, in one instruction.

        vpdpbusd takes four bytes from 0 to 255 in each lane of x, and four from −128 to 127 in each
        of w, and adds the four products to the lane of total, an int32.
        """
        if self.integers:
            name = "llvm.x86.avx512.vpdpbusd.512"
            terms = [total, x, w]
        else:
            name = f"llvm.fmuladd.v{LANES}f{self.bits}"
            terms = [x, w, total]
        kind = ir.FunctionType(self.vector, 3 * [self.vector])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, terms)

    def array(self, argument: int) -> Any:
        """An argument's data, shape and strides."""
        make = self.context.make_array(self.kinds[argument])
        return make(self.context, self.builder, self.arguments[argument])

    def length(self, argument: int) -> ir.Value:
        """How many rows an argument has."""
        return self.builder.extract_value(self.array(argument).shape, 0)

    def place(self, argument: int, *indices: ir.Value, lanes: int = LANES) -> ir.Value:
        """A pointer to so many numbers of an argument, from ``indices`` on."""
        first = cgutils.get_item_pointer(
            self.context, self.builder, self.kinds[argument], self.array(argument), indices
        )
        vector = ir.VectorType(first.type.pointee, lanes)
        return self.builder.bitcast(first, vector.as_pointer())

    def load(self, argument: int, *indices: ir.Value) -> ir.Value:
        """A vector of an argument, which need not lie at a multiple of a vector's bytes."""
        # LLVM would take a vector to lie at a multiple of its bytes, and the processor would fault
        return self.builder.load(self.place(argument, *indices), align=4)

    def prefetch(self, place: ir.Value, write: bool) -> None:
        """Asks for the cache line of ``place``, which is going to be read, or written."""
        byte = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = self.builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        nearest_cache = word(3)
        data = word(1)
        address = self.builder.bitcast(place, byte)
        self.builder.call(function, [address, word(int(write)), nearest_cache, data])


def prefetch_results(code: Code, lines: list, columns: list) -> None:
    """Asks for where the sums will go: memory takes longer to answer than a tile to compute."""
    for row in lines:
        for column in columns:
            code.prefetch(code.place(OUT, row, column), write=True)


def accumulate(code: Code, lines: list, columns: list) -> list[list]:
    """The loop over k: x w, as pointers to vectors, by row and column.

    Meanwhile one vector of each row of ``ahead`` is asked for, another one by each tile.
    """
    builder = code.builder
    size = code.arguments[ROW].type
    # memory as it is written here, but LLVM keeps what has no other pointer in registers
    zeros = ir.Constant(code.vector, None)
    sums = [[cgutils.alloca_once_value(builder, zeros) for _ in columns] for _ in lines]
    # of ahead's vectors, the one in the place that this tile has among all rows
    nth = builder.udiv(builder.mul(code.arguments[ROW], size(len(columns))), code.length(X))
    lane = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)  # the first, for all lanes
    with cgutils.for_range(builder, code.length(W)) as loop:
        weights = [code.load(W, loop.index, column) for column in columns]
        if isinstance(code.kinds[AHEAD], types.Array):
            next_weights = code.place(AHEAD, loop.index, builder.mul(nth, size(LANES)))
            code.prefetch(next_weights, write=False)
        for row, totals in zip(lines, sums, strict=True):
            one = builder.load(code.place(X, row, loop.index, lanes=1))
            every = builder.shuffle_vector(one, one, lane)  # x[row, k] in all lanes
            for weight, total in zip(weights, totals, strict=True):
                old = builder.load(total)
                new = code.multiply_and_add(every, weight, old)
                builder.store(new, total)
    return sums


def store_results(code: Code, lines: list, columns: list, sums: list[list]) -> None:
    """out = start + sums, or of bytes start + sums times scale."""
    builder = code.builder
    for row, totals in zip(lines, sums, strict=True):
        for column, total in zip(columns, totals, strict=True):
            value = builder.load(total)
            if code.integers:
                scale = code.load(SCALE, column)
                value = builder.fmul(builder.sitofp(value, scale.type), scale)
            answer = builder.fadd(code.load(START, row, column), value)
            builder.store(answer, code.place(OUT, row, column), align=4)


some_rows = tile(ROWS, VECTORS)
one_row = tile(1, VECTORS)
some_narrow = tile(ROWS, 1)
one_narrow = tile(1, 1)
