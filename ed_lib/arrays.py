"""One array API over NumPy, CuPy and PyTorch.

The three libraries agree on most names and differ on the rest. array-api-compat gives each of them the names
of the Python array API standard, so that a formula is written once and runs on all three. What has to be fast
uses the libraries themselves, for the arguments that the standard lacks (``out=``), and needs no
array-api-compat.
"""

import contextlib
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ed_lib import check

BACKENDS = ("numpy", "torch", "cupy")
DTYPES = ("float32", "float64")
Array = Any  # an array of NumPy, CuPy or PyTorch, for annotations


@dataclass(frozen=True)
class Space:
    """Where arrays live: a library, a device and a floating type.

    ``backend`` is the library's name, ``library`` its module, ``device`` what that library calls the device.
    """

    backend: str
    library: Any
    device: Any
    dtype: Any

    def asarray(self, array: Any) -> Array:
        """A NumPy array (or nested lists) as an array of this space: any shape. May share memory."""
        array = np.ascontiguousarray(array, dtype=dtype_name(self.dtype))
        if self.backend == "torch":
            return self.library.asarray(array, device=self.device)
        with self._current_device():
            return self.library.asarray(array)

    def empty(self, shape: tuple[int, ...]) -> Array:
        """An array of this space whose values are not set."""
        if self.backend == "torch":
            return self.library.empty(shape, dtype=self.dtype, device=self.device)
        with self._current_device():
            return self.library.empty(shape, self.dtype)

    def check(self, name: str, array: Array, shape: Sequence[int | str]) -> Array:
        """``array`` in this space's dtype, once it is known to be of this library and shape, and finite.

        ``shape`` holds a length for each axis, or a letter for an axis of any length ≥ 1. TypeError for
        another library or a dtype that is no real number, ValueError for another device, shape, or a value
        that is not finite; each message names the argument, what came and what was wanted. The values on a
        GPU are not looked at, since that would wait for it.
        """
        if not self._is_array(array):
            raise TypeError(
                f"{name} is a {type(array).__module__.split('.')[0]}.{type(array).__name__}; "
                f"wanted an array of the backend {self.backend!r}, as asarray() makes it"
            )
        if not self._same_device(array):
            raise ValueError(f"{name} is on the device {array.device}; wanted {self.device}")
        check.shape(name, tuple(array.shape), shape)
        if not dtype_name(array.dtype).startswith(("float", "bfloat", "int", "uint")):
            raise TypeError(f"{name} has the dtype {array.dtype}; wanted real numbers")
        if self.backend == "torch":
            array = array.detach().to(self.dtype)  # nothing here is differentiated by autograd
        else:
            array = array.astype(self.dtype, copy=False)
        if not self.is_gpu and not bool(self.library.isfinite(array).all()):
            raise ValueError(f"{name} holds NaN or infinity; wanted finite numbers")
        return array

    @property
    def is_gpu(self) -> bool:
        """True when arrays of this space lie in a GPU's memory."""
        return self.backend == "cupy" or str(self.device).startswith("cuda")

    def adopt(self, array: Array) -> Array:
        """An array of CuPy or PyTorch as one of this space, in the same memory."""
        if self._is_array(array):
            return array
        return self.library.from_dlpack(array)

    def _is_array(self, array):
        return isinstance(array, self.library.Tensor if self.backend == "torch" else self.library.ndarray)

    def _same_device(self, array):
        if self.backend == "torch":  # "cuda" and "cuda:0" are one device
            return array.device == self.library.empty(0, device=self.device).device
        return self.backend == "numpy" or array.device == self.device

    def _current_device(self):
        return self.device if self.backend == "cupy" else contextlib.nullcontext()


def space(backend: str = "numpy", device: str = "cpu", dtype: str = "float32") -> Space:
    """The :class:`Space` of a library ("numpy", "torch", "cupy"), a device ("cpu", "cuda:1") and a dtype.

    ValueError for a name that is unknown or does not fit the machine; ImportError, saying what to install,
    when the library is missing.
    """
    check.choice("backend", backend, BACKENDS)
    check.choice("dtype", dtype, DTYPES)
    kind = device.partition(":")[0] if isinstance(device, str) else device
    check.choice("device", kind, ("cpu", "cuda"))
    if backend == "numpy" and kind != "cpu":
        raise ValueError(f"device {device!r} with the backend 'numpy'; NumPy works on the device 'cpu'")
    if backend == "cupy" and kind != "cuda":
        raise ValueError(f"device {device!r} with the backend 'cupy'; CuPy works on the device 'cuda'")
    library = _import(backend)
    if kind == "cuda":
        device = _cuda_device(backend, device)
    return Space(backend, library, device, getattr(library, dtype))


def namespace(*arrays: Array) -> ModuleType:
    """The array-API namespace that these arrays have in common, from array-api-compat."""
    import array_api_compat

    return array_api_compat.array_namespace(*arrays)


def library(array: Array) -> ModuleType:
    """The module that an array comes from: numpy, cupy or torch."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def on_gpu(array: Array) -> bool:
    """True for an array in a GPU's memory."""
    return library(array).__name__ == "cupy" or getattr(array, "is_cuda", False)


def to_numpy(array: Array) -> np.ndarray:
    """The values of a NumPy, CuPy or PyTorch array, on any device, as a NumPy array. Waits for the device."""
    if hasattr(array, "get"):  # CuPy
        return array.get()
    if hasattr(array, "detach"):  # PyTorch
        return array.detach().cpu().numpy()
    return np.asarray(array)


def as_torch(array: Array) -> Any:
    """A NumPy or CuPy array as a PyTorch tensor in the same memory; a tensor as itself."""
    import torch

    return array if isinstance(array, torch.Tensor) else torch.from_dlpack(array)


def dtype_name(dtype: Any) -> str:
    """ "float32" for NumPy's, CuPy's or PyTorch's float32, and so on."""
    return str(np.dtype(dtype)) if not str(dtype).startswith("torch.") else str(dtype).removeprefix("torch.")


def gpu_count(backend: str = "torch") -> int:
    """How many GPUs the library sees; 0 when it sees none, or is not installed."""
    try:
        library = importlib.import_module(backend)
        return library.cuda.runtime.getDeviceCount() if backend == "cupy" else library.cuda.device_count()
    except Exception:  # no library, no driver, no GPU: each has its own error
        return 0


def _import(backend):
    try:
        return importlib.import_module(backend)
    except ImportError as error:
        package = "cupy-cuda13x" if backend == "cupy" else backend
        raise ImportError(f"backend {backend!r} needs {package}: pip install {package} ({error})") from error


def _cuda_device(backend, device):
    count, index = gpu_count(backend), device.partition(":")[2] or "0"
    if not index.isdigit() or int(index) >= count:
        raise ValueError(f"device is {device!r}; {backend} sees {count} GPU(s) on this machine")
    return importlib.import_module("cupy").cuda.Device(int(index)) if backend == "cupy" else f"cuda:{index}"
