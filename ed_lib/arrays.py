"""What the book asks of NumPy, PyTorch and CuPy alike: types by name, and GPUs."""

import importlib
from typing import Any

import numpy as np

Array = Any  # an array of one of them, for annotations


def dtype_name(dtype: Any) -> str:
    """ "float32" for NumPy's, CuPy's or PyTorch's float32, and so on. TypeError for what is no
    dtype.
    """
    text = str(dtype)
    # NumPy cannot read PyTorch's types, and has no bfloat16.
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    return str(np.dtype(dtype))


def gpu_count(backend: str = "torch") -> int:
    """How many GPUs a library, "torch" or "cupy", sees; 0 when it sees none, or is not
    installed.
    """
    try:
        cuda = importlib.import_module(backend).cuda
        return cuda.runtime.getDeviceCount() if backend == "cupy" else cuda.device_count()
    # No library, no driver and no GPU have each their own error, and all mean 0.
    except Exception:
        return 0
