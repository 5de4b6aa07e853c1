"""CUDA C without a GPU: a kernel's source, compiled as C++ and run on the CPU, to see what it
computes.

Each CUDA thread of a block becomes a thread of the CPU, and ``__syncthreads()`` a barrier of
theirs.
"""

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable

import numpy as np

# What the words of CUDA C become. A block's threads share what is static, since blocks run one
# after another.
MACROS = "__global__= __device__= __launch_bounds__(n)= __shared__=static".split()
MACROS += ["__syncthreads()=together->arrive_and_wait()"]
SHARED = r"extern __shared__ (\w+) (\w+)\[\]"  # memory whose size the launch says
UNWRITTEN = 255  # four or eight such bytes are NaN
PROGRAM = """
#include <math.h>
#include <algorithm>
#include <barrier>
#include <thread>
#include <vector>
using std::max, std::min;
using float32 = float; using float64 = double; using int32 = int; using int64 = long long;
struct dim3 { unsigned x, y, z; };
static dim3 gridDim, blockDim, blockIdx; static thread_local dim3 threadIdx;
static std::barrier<>* together;  // the threads of a block
static char* memory;  // that they share
SOURCE
template <class... A, class... G> void call(void (*kernel)(A...), G... given) {
    static_assert(((sizeof(A) == sizeof(G)
                    && std::is_integral_v<A> == std::is_integral_v<G>) && ...));
    kernel(given...);
}
static dim3 place(unsigned n, dim3 in) { return {n % in.x, n / in.x % in.y, n / in.x / in.y}; }
extern "C" void launch(const unsigned* s, void** args, char* shared) {
    gridDim = {s[0], s[1], s[2]}, blockDim = {s[3], s[4], s[5]}, memory = shared;
    for (unsigned block = 0, size = s[3] * s[4] * s[5]; block < s[0] * s[1] * s[2]; block++) {
        std::vector<std::thread> threads;
        std::barrier<> barrier(size);
        together = &barrier, blockIdx = place(block, gridDim);
        for (unsigned n = 0; n < size; n++)
            threads.emplace_back([=] { threadIdx = place(n, blockDim), call(KERNEL); });
        for (auto& thread : threads) thread.join();
    }
}
"""


class RawKernel:
    """A kernel on a CPU, made and called as CuPy's are: it shows what is computed, and not how
    fast.

    args are NumPy's arrays, written in place, and scalars; Python's own int and float count as 64
    bits, as in CuPy. TypeError for what the compiler, of C++20, does not accept. Each CUDA thread
    of a block becomes a thread of the CPU, and ``__syncthreads()`` a barrier of theirs; blocks run
    one after another.
    """

    def __init__(self, code: str, name: str, options: tuple[str, ...] = ()):
        self.code = code
        self.name = name
        self.options = tuple(options)

    def __call__(self, grid: tuple, block: tuple, args: tuple, *, shared_mem: int = 0) -> None:
        values = [np.asarray(arg) for arg in args]
        given = []
        for n, (arg, value) in enumerate(zip(args, values, strict=True)):
            star = "" if isinstance(arg, np.ndarray) else "*"  # a scalar is passed by value
            given.append(f"{star}({value.dtype}*)args[{n}]")
        launch = compile_kernel(self.code, ", ".join([self.name, *given]), self.options)
        # Three sizes each, at least 1, as CuPy fills them up.
        sizes = np.maximum([*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3]], 1).astype(np.uint32)
        pointers = np.array([value.ctypes.data for value in values], np.uintp)
        # A kernel that reads what none of its threads wrote shall get NaN, and not a lucky zero.
        memory = np.full(shared_mem, UNWRITTEN, np.uint8)
        launch(*(ctypes.c_void_p(array.ctypes.data) for array in (sizes, pointers, memory)))


@functools.cache
def compile_kernel(code: str, kernel: str, options: tuple[str, ...]) -> Callable:
    """The function that launches a kernel, with arguments of the types that follow its name."""
    code = re.sub(SHARED, r"\1* \2 = (\1*)memory", code)
    program = PROGRAM.replace("SOURCE", code).replace("KERNEL", kernel)
    if not shutil.which("g++"):
        raise RuntimeError("a CUDA kernel on a CPU needs the compiler g++: install g++")
    with tempfile.TemporaryDirectory() as folder:
        command = [*"g++ -std=c++20 -O2 -shared -fPIC -pthread".split(), *options, "-x", "c++", "-"]
        command += ["-o", f"{folder}/kernel.so", *(f"-D{macro}" for macro in MACROS)]
        done = subprocess.run(command, input=program, capture_output=True, text=True)
        if done.returncode:
            name = kernel.partition(",")[0]
            raise TypeError(f"{name} does not compile, or not for these:\n{done.stderr}")
        return ctypes.CDLL(f"{folder}/kernel.so").launch
