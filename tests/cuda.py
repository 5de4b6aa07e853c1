"""NVRTC, which compiles CUDA C for any GPU and needs none: by ctypes, since CuPy would ask for a
driver.
"""

import ctypes
import functools
from importlib import metadata

import pytest

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")


@functools.cache
def nvrtc():
    """The library that PyTorch's Linux wheels bring."""
    for wheel in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            files = metadata.files(wheel) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name.startswith("libnvrtc.so"):
                return ctypes.CDLL(str(file.locate()))
    pytest.skip("needs NVRTC, which PyTorch's wheels for Linux bring")


def cubin_size(source, architecture, options=()):
    """Bytes of machine code from a source text; AssertionError with NVRTC's words if it does not
    compile.
    """
    library, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = [
        f"--gpu-architecture={architecture}".encode(),
        *(option.encode() for option in options),
    ]
    failed = library.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert not failed, f"{architecture}: {log.value.decode()}"
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return size.value
