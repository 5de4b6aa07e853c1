"""Where a network's arrays live, and the few calls in which NumPy, PyTorch and CuPy differ."""

import importlib
import math
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ed_lib import check
from ed_lib.arrays import Array, dtype_name, gpu_count, gpu_lacks

BACKENDS = "numpy", "torch", "cupy"
DTYPES = "float32", "float64"
# Bytes of a cache line, which a vector should not straddle: it would be read in two halves.
LINE = 64


@dataclass(frozen=True)
class Space:
    """Where arrays live: a library, a device ("cuda" for CuPy, else "cpu") and a floating type, by
    name.
    """

    backend: str
    device: str
    precision: str

    @property
    def library(self) -> Any:
        """The library as a module."""
        return importlib.import_module(self.backend)

    def asarray(self, array: Any) -> Array:
        """A NumPy array (or nested lists) of any shape as an array of this space, a copy."""
        copy = self.empty(np.shape(array))
        copy[...] = self.library.asarray(np.asarray(array, dtype=self.precision))
        return copy

    def empty(self, shape: tuple[int, ...]) -> Array:
        """An array of this space whose values are not set; NumPy's begins with a line of the
        cache.
        """
        if self.backend != "numpy":
            return self.library.empty(shape, dtype=getattr(self.library, self.precision))
        size = math.prod(shape) * np.dtype(self.precision).itemsize
        # With room to begin later, since NumPy begins where it likes.
        memory = np.empty(size + LINE, np.uint8)
        start = -memory.ctypes.data % LINE  # bytes up to the next line
        return memory[start : start + size].view(self.precision).reshape(shape)

    def holds(self, numbers: float | np.ndarray) -> bool:
        """Whether numbers, of any size, are finite in this dtype."""
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.asarray(numbers).astype(self.precision)).all())

    def check(self, name: str, array: Array, shape: tuple[int | str, ...]) -> Array:
        """``array`` in this space's dtype. TypeError or ValueError unless it is of this library and
        shape (as in check.shape), of real numbers, and finite: on a GPU that is not looked at.
        """
        kind = self.library.Tensor if self.backend == "torch" else self.library.ndarray
        if not isinstance(array, kind):
            raise TypeError(f"{name} is a {type(array)}; wanted {kind}, as asarray() makes it")
        check.shape(name, tuple(array.shape), shape)
        if not dtype_name(array.dtype).startswith(("float", "bfloat", "int", "uint")):
            raise TypeError(f"{name} has the dtype {array.dtype}; wanted real numbers")
        dtype = getattr(self.library, self.precision)
        if self.backend == "torch":
            array = array.detach().to(dtype)
        else:
            array = array.astype(dtype, copy=False)
        # After the conversion, since a number may be too large for the dtype. Not on a GPU, where
        # to look at a value is to wait for it.
        if self.device == "cpu" and not bool(self.library.isfinite(array).all()):
            raise ValueError(f"{name} holds NaN or infinity; wanted finite numbers")
        return array


def space(backend: str = "numpy", device: str = "cpu", dtype: str = "float32") -> Space:
    """The :class:`Space` of a library, a device and a dtype. ValueError for what is unknown or does
    not fit, and, saying what to install, where CuPy is missing.
    """
    check.choice("backend", backend, BACKENDS)
    check.choice("dtype", dtype, DTYPES)
    wanted = "cuda" if backend == "cupy" else "cpu"
    if device != wanted:
        raise ValueError(f"device is {device!r}; wanted {wanted!r} with the backend {backend!r}")
    if backend == "cupy" and (lacks := gpu_lacks()):
        raise ValueError(f"backend is 'cupy'; wanted a GPU with {lacks}")
    if backend == "cupy" and not gpu_count(backend):
        how = "pip install cupy-cuda12x, or cupy-cuda13x with CUDA 13"
        raise ValueError(f"backend is 'cupy'; CuPy is not installed here ({how}), or sees no GPU")
    return Space(backend, device, dtype)


def library(array: Array) -> ModuleType:
    """The module that an array comes from: numpy, cupy or torch."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def to_numpy(array: Array) -> np.ndarray:
    """The values of an array of any library, on any device, as a NumPy array. Waits for the
    device.
    """
    if hasattr(array, "get"):  # CuPy
        return array.get()
    if hasattr(array, "detach"):  # PyTorch
        return array.detach().cpu().numpy()
    return np.asarray(array)
