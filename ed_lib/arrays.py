"""What the book asks of NumPy, PyTorch and CuPy alike: types by name, and GPUs."""

import importlib
from typing import Any

import numpy as np

Array = Any  # an array of one of them, for annotations


def dtype_name(dtype: Any) -> str:
    """ "float32" for NumPy's, CuPy's or PyTorch's float32, and so on."""
    return (
        str(dtype).removeprefix("torch.")
        if str(dtype).startswith("torch.")
        else str(np.dtype(dtype))
    )


def gpu_count(backend: str = "torch") -> int:
    """How many GPUs the library sees; 0 when it sees none, or is not installed."""
    try:
        cuda = importlib.import_module(backend).cuda
        return cuda.runtime.getDeviceCount() if backend == "cupy" else cuda.device_count()
    except Exception:  # no library, no driver, no GPU: each has its own error
        return 0
