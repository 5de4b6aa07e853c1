"""Subnormal numbers as zeros, inside compiled functions alone.

Numbers nearer to zero than 1.2e-38 (float32; 2.2e-308 in float64) are subnormal: they have fewer
digits than others. Many processors leave the arithmetic to slow microcode then, at a hundred cycles
and more for an instruction. ED makes such numbers by itself, as products of small slopes and small
errors: at the default rate a step of 512 layers takes 11.6 ms on a Xeon, and 4.3 ms without them.
An EPYC pays next to nothing.

A register of each thread, MXCSR, says what becomes of them. Two of its bits turn them into zeros:
FTZ those that an instruction would answer, DAZ those that it is given. ``torch.set_flush_denormal``
sets both, in the thread that calls it and for all that runs there. Here they are set in each thread
that computes, and set back at the end, so that a caller finds the register as it was.

Other processors than x86 have other registers; there nothing is changed.

NumPy's path, ``ed.layout``, runs with the caller's setting: ``torch.set_flush_denormal(True)``
holds for NumPy's own loops, and for a BLAS of one thread. A thread starts with the setting of the
one that starts it, so those that a BLAS has started before keep theirs.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

TRIPLE = cpu_target.target_context.codegen().magic_tuple()[0]  # such as x86_64-unknown-linux-gnu
X86 = TRIPLE.startswith(("x86_64", "i386", "i686"))
FTZ = 0x8000  # flush to zero: what is answered
DAZ = 0x0040  # denormals are zero: what is given
WORD = ir.IntType(32)
PLACE = ir.IntType(8).as_pointer()


@intrinsic
def without_subnormals(typing: Any, function: Any, arguments: Any) -> Any:
    """function(*arguments), with subnormal numbers as zeros; a compiled function, and a tuple.

    The register is set back before an error goes on to the caller. (Numba's ``finally`` cannot do
    it: an error that passes through one becomes another, in Numba 0.68.)
    """
    called = function.get_call_type(typing, arguments.types, {})

    def emit(context, builder, signature, given):
        # what the call would be of itself, but that what it leaves, an answer or an error, waits
        values = cgutils.unpack_tuple(builder, given[1], len(arguments.types))
        compiled = function.dispatcher.get_compile_result(called)
        context.active_code_library.add_linking_library(compiled.library)
        before = read(builder)
        write(builder, builder.or_(before, WORD(FTZ | DAZ)))
        status, answer = context.call_internal_no_propagate(
            builder, compiled.fndesc, called, values
        )
        write(builder, before)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return answer

    return called.return_type(function, arguments), emit


@intrinsic
def mode(typing: Any) -> Any:
    """The register's bits, a uint32; 0 where there is none."""

    def emit(context, builder, signature, given):
        return read(builder)

    return types.uint32(), emit


@intrinsic
def set_mode(typing: Any, bits: Any) -> Any:
    """Sets the register of this thread to ``bits``, a uint32."""

    def emit(context, builder, signature, given):
        write(builder, given[0])
        return context.get_dummy_value()

    return types.none(types.uint32), emit


def read(builder: ir.IRBuilder) -> ir.Value:
    """The instruction that stores the register, and one that loads what it has stored."""
    if not X86:
        return WORD(0)
    # the instruction has no other way out than the memory
    slot = cgutils.alloca_once(builder, WORD)
    instruct(builder, "llvm.x86.sse.stmxcsr", slot)
    return builder.load(slot)


def write(builder: ir.IRBuilder, bits: ir.Value) -> None:
    """The instruction that loads the register.

    For LLVM, arithmetic has nothing to do with the register, so that it may be moved past the
    instruction. But no load or store passes a fence. So whatever is computed from numbers loaded
    after ``write`` is computed after it, and what is stored before it is computed before. The fence
    is one for the compiler alone ("singlethread"), and no instruction.
    """
    if not X86:
        return
    slot = cgutils.alloca_once(builder, WORD)
    builder.store(bits, slot)
    builder.fence("seq_cst", "singlethread")
    instruct(builder, "llvm.x86.sse.ldmxcsr", slot)
    builder.fence("seq_cst", "singlethread")


def instruct(builder: ir.IRBuilder, name: str, slot: ir.Value) -> None:
    """The instruction ``name``, with a pointer to 32 bits."""
    kind = ir.FunctionType(ir.VoidType(), [PLACE])
    function = builder.module.declare_intrinsic(name, fnty=kind)
    builder.call(function, [builder.bitcast(slot, PLACE)])
