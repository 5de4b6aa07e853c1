"""The ways through the hidden layers, and the choice among them.

"layers": a loop in Python, a few calls to the library for each layer; works everywhere.
"graph": the same calls, recorded once as a CUDA graph and then launched together; NVIDIA GPUs.
"kernel": one compiled function that walks all layers, and one that updates them: in Triton on an NVIDIA GPU
(``kernels``), in Numba on a CPU (``cpu_kernels``).
"sweeps": all layers at once, again and again until no answer changes (``sweeps``); on a GPU in Triton, and
the update by its kernel. Never taken by "auto".

On a GPU all but "layers" are recorded as one CUDA graph for a whole call: see ``on_gpu``.
"""

import contextlib
import importlib.util
import warnings
from collections.abc import Callable
from types import ModuleType

from ed_lib import arrays, check
from ed_lib.arrays import Array, Space
from ed_lib.ed import folded, sweeps

PATHS = ("layers", "graph", "kernel", "sweeps")
# On a CPU "auto" takes the kernel for networks that are deep, since compiling it takes seconds, and narrow,
# since the BLAS shares larger products among threads better than the kernel shares tiles.
DEEP, NARROW = 16, 64


def choose(path: str, space: Space, width: int, depth: int) -> str:
    """The name of the path to take: ``path`` itself, or for "auto" the fastest that is possible.

    That is "kernel", then "graph", then "layers"; on a CPU "layers" for a network that is not deep, or not
    narrow. Where the first that would be taken is not possible, a warning says why.
    """
    check.choice("path", path, ("auto", *PATHS))
    if path != "auto":
        if reason := obstacle(path, space, width):
            raise ValueError(f"path is {path!r}; {reason}")
        return path
    if not space.is_gpu and (depth < DEEP or width > NARROW):
        return "layers"
    reasons = {name: obstacle(name, space, width) for name in ("kernel", "graph", "layers")}
    best = next(name for name, reason in reasons.items() if reason is None)
    if best != "kernel":
        warnings.warn(f"taking the path {best!r}: {reasons['kernel']}", stacklevel=3)
    return best


def obstacle(path: str, space: Space, width: int) -> str | None:
    """Why this path is not possible for arrays of this space and layers of this width; None when it is."""
    if path == "layers":
        return None
    if space.backend == "cupy" and not arrays.gpu_count("torch"):
        return f"the path {path!r} needs a PyTorch that sees the GPU"
    if path == "graph":
        return None if space.is_gpu else "the path 'graph' needs a GPU"
    if path == "sweeps" and not space.is_gpu:
        return None
    needed = "triton" if space.is_gpu else "numba"
    if importlib.util.find_spec(needed) is None:
        return f"the path {path!r} needs {needed}: pip install {needed}"
    return kernels(space).obstacle(width, arrays.dtype_name(space.dtype))


def kernels(space: Space) -> ModuleType:
    """The module with the kernels for arrays of this space."""
    if space.is_gpu:
        from ed_lib.ed import kernels as gpu_kernels

        return gpu_kernels
    from ed_lib.ed import cpu_kernels

    return cpu_kernels


def walk(path: str, space: Space, states: Array, weight: Array, bias: Array, u0: float) -> Callable[[], None]:
    """A function that computes the hidden layers by this path, as :func:`ed_lib.ed.folded.hidden_layers`.

    It is bound to these arrays, which may change and must not move.
    """
    if path == "sweeps" and len(weight):
        return sweeps.Sweeps(states, weight, bias, u0)
    if path == "kernel" and len(weight):
        return lambda: kernels(space).forward(states, weight, bias, u0)
    return lambda: folded.hidden_layers(states, weight, bias, u0)


def learn_hidden(
    path: str, space: Space, weight: Array, bias: Array, states: Array, gains: Array, bias_gains: Array
) -> None:
    """The update of all hidden-to-hidden layers on a CPU by this path; see ``folded.learn_hidden``."""
    if path == "kernel" and len(weight):
        kernels(space).update(weight, bias, states, gains, bias_gains)
    else:
        folded.learn_hidden(weight, bias, states, gains, bias_gains)


def alone(path: str, space: Space) -> contextlib.AbstractContextManager:
    """The context that the matrix products want while this path is taken: see ``cpu_kernels.alone``."""
    return kernels(space).alone() if path == "kernel" and not space.is_gpu else contextlib.nullcontext()
