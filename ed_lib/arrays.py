"""Arrays of NumPy, PyTorch and CuPy: where they live, and the few calls in which the libraries differ."""

import contextlib
import functools
import importlib
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ed_lib import check

BACKENDS, DTYPES = ("numpy", "torch", "cupy"), ("float32", "float64")
Array = Any  # an array of one of them, for annotations


@dataclass(frozen=True)
class Space:
    """Where arrays live: a library, by name and as a module, a device, a floating type."""

    backend: str
    library: Any
    device: str  # as "cuda:1"
    dtype: Any

    def asarray(self, array: Any) -> Array:
        """A NumPy array (or nested lists) of any shape as an array of this space. May share memory."""
        array = self.library.asarray(np.ascontiguousarray(array, dtype=dtype_name(self.dtype)))
        return array.to(self.device) if self.backend == "torch" else array

    def empty(self, shape: tuple[int, ...]) -> Array:
        """An array of this space whose values are not set."""
        on = {"device": self.device} if self.backend == "torch" else {}
        return self.library.empty(shape, dtype=self.dtype, **on)

    def check(self, name: str, array: Array, shape: tuple[int | str, ...]) -> Array:
        """``array`` in this space's dtype. TypeError or ValueError unless it is of this library, device and
        shape (as in check.shape), of real numbers, and finite: on a GPU that is not looked at.
        """
        if not isinstance(array, type(self.empty((0,)))):
            kind = f"{type(array).__module__.split('.')[0]}.{type(array).__name__}"
            raise TypeError(f"{name} is a {kind}; wanted one of {self.backend!r}, as asarray() makes it")
        if self.backend == "torch" and array.device != self.empty((0,)).device:
            raise ValueError(f"{name} is on the device {array.device}; wanted {self.device}")
        check.shape(name, tuple(array.shape), shape)
        if not dtype_name(array.dtype).startswith(("float", "bfloat", "int", "uint")):
            raise TypeError(f"{name} has the dtype {array.dtype}; wanted real numbers")
        torch = self.backend == "torch"
        array = array.detach().to(self.dtype) if torch else array.astype(self.dtype, copy=False)
        if not self.is_gpu and not bool(self.library.isfinite(array).all()):
            raise ValueError(f"{name} holds NaN or infinity; wanted finite numbers")
        return array

    @property
    def is_gpu(self) -> bool:
        """Whether arrays of this space lie in a GPU's memory."""
        return self.device.startswith("cuda")


def space(backend: str = "numpy", device: str = "cpu", dtype: str = "float32") -> Space:
    """The :class:`Space` of a library, a device and a dtype. ValueError for what is unknown or does not fit;
    ImportError, saying what to install, if the library is missing.
    """
    check.choice("backend", backend, BACKENDS)
    check.choice("dtype", dtype, DTYPES)
    kind, _, index = str(device).partition(":")
    check.choice("device", kind, ("cpu", "cuda"))
    if (backend, kind) in (("numpy", "cuda"), ("cupy", "cpu")):
        raise ValueError(f"device {device!r} with the backend {backend!r}; NumPy takes 'cpu', CuPy 'cuda'")
    try:
        library = importlib.import_module(backend)
    except ImportError as error:
        package = "cupy-cuda12x, or cupy-cuda13x with CUDA 13" if backend == "cupy" else backend
        raise ImportError(f"backend {backend!r} is missing: pip install {package} ({error})") from error
    if kind == "cuda" and (index or "0") not in map(str, range(gpu_count(backend))):
        raise ValueError(f"device is {device!r}; {backend} sees {gpu_count(backend)} GPU(s) here")
    if backend == "cupy":
        library.cuda.Device(int(index or 0)).use()  # from here on: what CuPy makes is made there
    return Space(backend, library, str(device), getattr(library, dtype))


def library(array: Array) -> ModuleType:
    """The module that an array comes from: numpy, cupy or torch."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def to_numpy(array: Array) -> np.ndarray:
    """The values of an array of any library, on any device, as a NumPy array. Waits for the device."""
    if hasattr(array, "get"):  # CuPy
        return array.get()
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


def dtype_name(dtype: Any) -> str:
    """ "float32" for NumPy's, CuPy's or PyTorch's float32, and so on."""
    return str(dtype).removeprefix("torch.") if str(dtype).startswith("torch.") else str(np.dtype(dtype))


def gpu_count(backend: str = "torch") -> int:
    """How many GPUs the library sees; 0 when it sees none, or is not installed."""
    try:
        cuda = importlib.import_module(backend).cuda
        return cuda.runtime.getDeviceCount() if backend == "cupy" else cuda.device_count()
    except Exception:  # no library, no driver, no GPU: each has its own error
        return 0


@functools.cache
def _pools():
    import scipy.linalg.cython_blas  # noqa: F401  the BLAS that Numba calls, which has to be loaded
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> contextlib.AbstractContextManager:
    """A context in which every matrix product runs on the thread that asks for it: compiled code fills the
    threads itself, and is several times slower beside a BLAS that takes some or keeps them spinning.
    """
    return _pools().limit(limits=1, user_api="blas")
