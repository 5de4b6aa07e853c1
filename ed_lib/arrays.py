"""What the book asks of NumPy, PyTorch and CuPy alike: types by name, and GPUs."""

import importlib
from typing import Any

import numpy as np

Array = Any  # an array of one of them, for annotations
# The least that the book's code for GPUs is compiled for, and what its cells need at most
CAPABILITY = (7, 5)  # of Turing, with which CUDA 13 begins
MEMORY = 6e9  # bytes


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
    installed, or when the current GPU is not enough for this book.
    """
    try:
        cuda = importlib.import_module(backend).cuda
        count = cuda.runtime.getDeviceCount() if backend == "cupy" else cuda.device_count()
    # No library, no driver and no GPU have each their own error, and all mean 0.
    except Exception:
        return 0
    return 0 if count and gpu_lacks() else count


def gpu_lacks(capability: tuple[int, int] = CAPABILITY) -> str:
    """What the current GPU has too little of, and how much it has, in words; "" if it has enough,
    or PyTorch sees none. capability: the compute capability that is needed.
    """
    import torch

    if not torch.cuda.is_available():
        return ""
    gpu = torch.cuda.get_device_properties("cuda")
    if (gpu.major, gpu.minor) < capability:
        needed = f"compute capability {capability[0]}.{capability[1]} or more"
        return f"{needed}; the {gpu.name} here has {gpu.major}.{gpu.minor}"
    if gpu.total_memory < MEMORY:
        there = f"{gpu.total_memory / 1e9:.1f} GB"
        return f"{MEMORY / 1e9:.0f} GB of memory; the {gpu.name} here has {there}"
    return ""
