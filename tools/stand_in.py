"""A stand-in for a GPU, on a machine that has none: everything but the device itself can be exercised.

    python -m tools.stand_in benchmarks ed --device cuda ...

runs a module with it. PyTorch then says that there is one GPU, and what is sent there stays where it is.
Triton's kernels run in its interpreter, a CUDA graph calls its function again, an event is the clock, and
CuPy is NumPy by another name. Numbers are right, and no time means anything.
"""

import contextlib
import os
import runpy
import sys
import types
from time import perf_counter

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from tools import interpreter  # noqa: E402

interpreter.mend()

NAME, MEMORY = "a rehearsal", 2**26  # bytes
GPU = types.SimpleNamespace(
    name=NAME, major=9, minor=0, multi_processor_count=132, total_memory=MEMORY,
    shared_memory_per_block_optin=232_448, L2_cache_size=64,
)  # fmt: skip


SAID = {torch.Tensor.is_cuda.__get__: True, torch.Tensor.device.__get__: torch.device("cuda:0")}


class Here(TorchFunctionMode):
    """Tensors say that they are on the GPU; what would bring them there leaves them here."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in SAID:
            return SAID[function]
        if function == torch.Tensor.cuda:
            return args[0]
        if function is torch.device:
            return function(*args, **(kwargs or {}))
        kwargs = {name: here(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return function(*map(here, args), **kwargs)


def here(value):
    """The CPU in place of the GPU; anything else as it is."""
    is_gpu = isinstance(value, (str, torch.device)) and str(value).partition(":")[0] == "cuda"
    return "cpu" if is_gpu else value


class Event:
    """A moment on the clock."""

    def __init__(self, **options):
        self.seconds = None

    def record(self, stream=None):
        self.seconds = perf_counter()

    def elapsed_time(self, other):
        return (other.seconds - self.seconds) * 1e3  # milliseconds

    def synchronize(self):
        pass

    def query(self):
        return True


class Generator(torch.Generator):
    """A generator of random numbers, which is here whatever device it is for."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, here(device))


class Autocast(torch.autocast):
    """Autocast of what is here."""

    def __init__(self, device_type, *arguments, **options):
        super().__init__(here(device_type), *arguments, **options)


class Stream:
    """Work is done when it is given, in whatever stream."""

    def __init__(self, *arguments, **options):
        pass

    def wait_stream(self, other):
        pass

    wait_event = wait_stream

    def record_event(self, event=None):
        return event or Event()

    def synchronize(self):
        pass


class Device(contextlib.nullcontext):
    """CuPy's device, of which there is one."""

    def __init__(self, index=0):
        super().__init__()

    def __eq__(self, other):
        return isinstance(other, Device)

    def synchronize(self):
        pass


class ndarray(np.ndarray):
    """CuPy's array: NumPy's, with ``get``, on the GPU."""

    device = Device()

    def get(self):
        return np.asarray(self)


ndarray.__module__ = "cupy"


def cupy():
    """A module that answers as CuPy does, with NumPy's functions."""
    module = types.ModuleType("cupy")
    runtime = types.SimpleNamespace(
        getDeviceCount=lambda: 1,
        memGetInfo=lambda: (MEMORY, MEMORY),
        getDeviceProperties=lambda index: {"name": NAME.encode(), "totalGlobalMem": MEMORY},
    )
    module.cuda = types.SimpleNamespace(Device=Device, runtime=runtime)
    module.ndarray, module.__version__ = ndarray, np.__version__
    module.from_dlpack = lambda tensor: tensor.detach().numpy().view(ndarray)
    for name in ("asarray", "array", "empty", "zeros", "ones", "full", "stack", "concatenate", "arange"):
        made = getattr(np, name)
        setattr(module, name, lambda *a, made=made, **o: made(*a, **o).view(ndarray))
    module.__getattr__ = lambda name: getattr(np, name)
    return module


def once(functions, turn, rounds):
    """What ``timing.by_events`` returns, of one run of each."""
    from ed_lib import timing

    seconds = {name: timing.elapsed(function)[0] for name, function in functions.items()}
    return {name: timing.Timing(took, took, took, 1) for name, took in seconds.items()}


def replacements():
    """[(object, name, what stands there meanwhile)]."""
    from ed_lib import devices, roofline, timing

    apart, turn, ceilings = timing.apart, timing.take_turn, roofline.measure
    nothing, context = lambda *arguments, **options: None, lambda *arguments: contextlib.nullcontext()
    cuda = {
        "is_current_stream_capturing": lambda: False,
        "is_available": lambda: True, "is_initialized": lambda: True, "device_count": lambda: 1,
        "current_device": lambda: 0, "synchronize": nothing, "empty_cache": nothing,
        "current_stream": Stream, "Stream": Stream, "Event": Event, "CUDAGraph": object, "stream": context,
        "graph": context, "device": context, "device_of": context,
        "get_device_name": lambda *device: NAME, "get_device_capability": lambda *device: (9, 0),
        "get_device_properties": lambda *device: GPU, "mem_get_info": lambda *device: (MEMORY, MEMORY),
        "memory_reserved": lambda *device: 0, "memory_allocated": lambda *device: 0,
        "max_memory_allocated": lambda *device: 0, "reset_peak_memory_stats": nothing,
    }  # fmt: skip
    return [
        *((torch.cuda, name, value) for name, value in cuda.items()),
        (torch, "Generator", Generator),
        (torch, "autocast", Autocast),
        (torch._C, "_cuda_hasPrimaryContext", lambda index: True),
        (torch.accelerator, "current_accelerator", nothing),
        (roofline, "SIZES", {"cpu": (64,), "cuda": (64,)}),
        *(
            (roofline, name, lambda device, dtype="float32", seconds=0: ceilings(device, dtype, seconds=1e-3))
            for name in ("measure", "raised", "ceilings")
        ),  # of a rehearsal, nothing is kept
        (torch.nn.RNNBase, "flatten_parameters", nothing),
        (devices.Graph, "__call__", lambda graph: graph.function()),
        (timing, "by_events", once),
        (timing, "take_turn", lambda function, timer, seconds: turn(function, timer, 0)),
        (timing, "apart", lambda function, **options: apart(function, min_seconds=1e-9, min_runs=1)),
    ]


@contextlib.contextmanager
def stand_in():
    """As long as this lasts there is a GPU, of the kind described above."""
    found = [(where, name, getattr(where, name), value) for where, name, value in replacements()]
    before = sys.modules.get("cupy")
    sys.modules["cupy"] = cupy()
    try:
        for where, name, _, value in found:
            setattr(where, name, value)
        with Here():
            yield
    finally:
        for where, name, value, _ in found:
            setattr(where, name, value)
        sys.modules.pop("cupy")
        if before is not None:
            sys.modules["cupy"] = before


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    with stand_in():
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
