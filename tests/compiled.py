"""What a Triton kernel becomes on a GPU that need not be here: registers, memory, instructions.

    jobs = compiled.jobs("ed_lib.lstm.kernels:cell_kernel", lambda: kernels.triton_cell(...), 80, 90)
    for made in compiled.compiled(jobs): assert made.spills == 0

``jobs`` notes with what arguments a kernel is launched, and ``compiled`` compiles it for such arguments as
Triton would at that launch, in one process for all of them, where Triton is not interpreted. The tools that
Triton brings assemble the code and take it apart: nothing runs, and neither CUDA nor a GPU is needed.
"""

import importlib.util
import inspect
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

try:
    from triton import jit
except ImportError:
    jit = lambda function: function  # noqa: E731

ROOT = Path(__file__).parents[1]
POINTERS = {
    torch.float64: "*fp64", torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int64: "*i64", torch.int32: "*i32", torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A kernel, "module:function", to be compiled for a compute capability, such as 90. ``arguments``, by
    name: "*fp16" for a pointer, else the value itself. ``options``: num_warps and the like.
    """

    kernel: str
    target: int
    arguments: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)


def jobs(kernel, call, *targets):
    """A :class:`Job` for each launch of a kernel, "module:function", in ``call()``, and each target. Nothing
    is launched, so tensors may be on the device "meta".
    """
    module, name = kernel.split(":")
    module, launches = importlib.import_module(module), []
    names = [*inspect.signature(getattr(module, name).fn).parameters]

    def note(*args, **kwargs):
        given = dict(zip(names, args, strict=False)) | kwargs
        given = {n: POINTERS[a.dtype] if isinstance(a, torch.Tensor) else a for n, a in given.items()}
        arguments = {n: a for n, a in given.items() if n in names}
        launches.append((arguments, {n: a for n, a in given.items() if n not in names}))

    stand_in = mock.MagicMock()
    stand_in.__getitem__.return_value = note
    with mock.patch.object(module, name, stand_in):
        call()
    return [Job(kernel, target, *launch) for launch in launches for target in targets]


@dataclass(frozen=True)
class Multiprocessor:
    """What its programs share, each beside ``reserved`` bytes of its own; most for one: ``most``."""

    shared: int
    reserved: int
    most: int
    warps: int
    programs: int


K = 1024
MULTIPROCESSORS = {  # by compute capability: CUDA C++ Programming Guide, technical specifications
    75: Multiprocessor(64 * K, 0, 64 * K, 32, 16),
    80: Multiprocessor(164 * K, K, 163 * K, 64, 32),
    90: Multiprocessor(228 * K, K, 227 * K, 64, 32),
    100: Multiprocessor(228 * K, K, 227 * K, 64, 32),
}


@dataclass(frozen=True)
class Made:
    """A compiled kernel. ``registers`` and ``spills`` (bytes of stack) are a thread's, ``shared`` (bytes) a
    program's, ``scratch`` bytes of global memory. ``ptx``, ``sass``: how often each instruction stands in the
    code; ``loop``: in its longest loop, of ``sass``.
    """

    target: int
    threads: int
    registers: int
    spills: int
    shared: int
    scratch: int
    ptx: Counter
    sass: Counter
    loop: Counter

    @property
    def occupancy(self):
        """Programs that a multiprocessor holds at once."""
        chip, warps = MULTIPROCESSORS[self.target], self.threads // 32
        a_warp = -(-self.registers * 32 // 256) * 256  # registers are given by 256
        by_registers = 65_536 // 4 // a_warp * 4 // warps  # a quarter of them for a quarter of the warps
        by_shared = chip.shared // (self.shared + chip.reserved) if self.shared else chip.programs
        fits = self.shared <= chip.most
        return fits * min(by_registers, by_shared, chip.warps // warps, chip.programs)

    @property
    def products(self):
        """Instructions for tensor cores."""
        return count(self.sass, r"([HIDQ]G?|UTC\w*)MMA\b")

    @property
    def copies(self):
        """Instructions that copy into shared memory and do not wait for it: cp.async, and the TMA's."""
        return count(self.sass, r"LDGSTS|UTMALDG|UBLKCP")

    @property
    def acquires(self):
        """Loads, and atomics, after which what others released is seen."""
        return count(self.ptx, r"(ld|atom)\.(?=.*\bacquire\b)")

    @property
    def releases(self):
        """Atomics and fences, for the whole GPU, before which all was written."""
        ordered = r"(red|atom|st|fence)\.(?=.*\b(release|acq_rel|sc)\b)(?=.*\b(gpu|sys)\b)"
        return count(self.ptx, rf"{ordered}|membar\.(gl|sys)")

    @property
    def barriers(self):
        """Barriers of a program's threads in the longest loop."""
        return count(self.loop, r"BAR\.")


def count(instructions, pattern):
    """How many instructions begin as the regular expression says."""
    return sum(n for name, n in instructions.items() if re.match(pattern, name))


def obstacle(target=None):
    """Why nothing can be compiled here, or not for this target; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "there is no Triton"
    if missing := [name for name in ("ptxas", "cuobjdump") if not (tools() / name).exists()]:
        return f"this Triton comes without {' and '.join(missing)}"
    try:
        compiled([Job("tests.compiled:nothing", target, {})] if target else [])
    except RuntimeError as error:
        return f"this Triton does not compile for sm_{target}: {str(error)[-300:]}"


def tools():
    return Path(importlib.util.find_spec("triton").origin).parent / "backends" / "nvidia" / "bin"


def compiled(jobs):
    """The :class:`Made` of each job. RuntimeError if one does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "jobs", Path(folder) / "made"
        given.write_bytes(pickle.dumps(list(jobs)))
        environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
        child = subprocess.run(
            [sys.executable, "-m", "tests.compiled", given, found], cwd=ROOT, capture_output=True, text=True,
            env=environment | {"TRITON_CACHE_DIR": folder},
        )  # fmt: skip
        if child.returncode:
            raise RuntimeError(f"{child.stdout}{child.stderr}"[-3000:])
        return [Made(**made) for made in pickle.loads(found.read_bytes())]


@jit
def nothing():
    """What ``obstacle`` compiles."""


def compile_all(jobs):
    """In the process that compiles: what :class:`Made` holds of each job, as dicts."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for job in jobs:
        module, name = job.kernel.split(":")
        kernel = getattr(importlib.import_module(module), name)
        types, constants, attributes = {}, {}, {}
        for n, parameter in enumerate(kernel.params):
            value = job.arguments.get(parameter.name)
            types[parameter.name], aligned = specialised(value, parameter.is_constexpr)
            if types[parameter.name] == "constexpr":
                constants[parameter.name] = value
            if aligned:
                attributes[n,] = [["tt.divisibility", 16]]
        source = ASTSource(kernel, types, constants, attributes)
        made = triton.compile(source, target=GPUTarget("cuda", job.target, 32), options=job.options)
        cubin = Path(os.environ["TRITON_CACHE_DIR"]) / "cubin"
        cubin.write_bytes(made.asm["cubin"])
        usage = taken_apart(cubin, "-res-usage")
        sass = instructions_of(taken_apart(cubin, "-sass"))
        yield dict(
            target=job.target,
            threads=32 * made.metadata.num_warps,
            registers=int(re.search(r"REG:(\d+)", usage)[1]),
            spills=int(re.search(r"STACK:(\d+)", usage)[1]) + int(re.search(r"LOCAL:(\d+)", usage)[1]),
            shared=made.metadata.shared,
            scratch=getattr(made.metadata, "global_scratch_size", 0),
            ptx=Counter(re.findall(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]+)\s", made.asm["ptx"], re.MULTILINE)),
            sass=Counter(name for _, name, _ in sass),
            loop=Counter(longest_loop(sass)),
        )


def specialised(value, constant):
    """(Triton's type of an argument, whether 16 divides it): in a launch a 1 becomes a constant."""
    if constant or value is None or (value == 1 and isinstance(value, int)):
        return "constexpr", False
    if isinstance(value, str):
        return value, True  # PyTorch's allocator aligns its arrays
    if isinstance(value, float):
        return "fp32", False
    return ("i32" if -(2**31) <= value < 2**31 else "i64"), value % 16 == 0


def taken_apart(cubin, what):
    return subprocess.run(
        [tools() / "cuobjdump", what, cubin], capture_output=True, text=True, check=True
    ).stdout


def instructions_of(text):
    """(address, name, operands) of each instruction that cuobjdump shows."""
    line = r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);"
    return [(int(address, 16), name, rest) for address, name, rest in re.findall(line, text)]


def longest_loop(sass):
    """The names of the instructions from the target of a jump back to the jump, of the farthest one."""
    longest = (0, 0)
    for address, name, operands in sass:
        target = re.search(r"\b0x([0-9a-f]+)\s*$", operands) if name.startswith("BRA") else None
        if target and int(target[1], 16) < address:  # not the endless loop behind the code, onto itself
            longest = max(longest, (address - int(target[1], 16), address))
    length, end = longest
    return [name for address, name, _ in sass if length and end - length <= address <= end]


if __name__ == "__main__":
    given, found = map(Path, sys.argv[1:])
    found.write_bytes(pickle.dumps([*compile_all(pickle.loads(given.read_bytes()))]))
