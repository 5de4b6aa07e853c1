"""One step under PyTorch's profiler, for what a watcher at the dispatcher cannot see: compiled
code, a GPU's own clock, and messages between ranks.
"""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from ed_lib.diagnose import intervals

COMPILED = "## Call CompiledFxGraph"  # the profiler's mark of code that torch.compile has written
QUIET = "6"  # above the level of an error
# Messages: of gloo's threads on the processor, of NCCL's kernels on the device
MESSAGES = ("gloo:", "nccl")
# Calls of CUDA's runtime in which the host waits for the device
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
MICRO = 1e-6  # seconds of the profiler's unit


@dataclass
class Profiled:
    """Seconds of one profiled step.

    ``operators``: {name: seconds of its calls, on the device if there is one}; ``compiled``:
    seconds of compiled code, products apart, None where there is none; ``messages``: seconds in
    which messages travelled and nothing was computed. On a GPU ``busy``: seconds of its kernels,
    of the ``span`` from the first to the last; ``after_waits``: seconds that it was idle since the
    host had waited for it; ``kernels``: how many.
    """

    operators: dict[str, float] = field(default_factory=dict)
    compiled: float | None = None
    messages: float = 0.0
    span: float = 0.0
    busy: float = 0.0
    after_waits: float = 0.0
    kernels: int = 0


def is_needed(device: str) -> bool:
    """Whether a step may do what a watcher at the dispatcher cannot see."""
    compiler = "torch._dynamo.utils" in sys.modules
    has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    return device != "cpu" or compiler or has_ranks


def profiled(step: Callable, names: set[str], device: str) -> Profiled:
    """Runs ``step()`` once. ``names``: operators whose time is wanted, as the watcher calls
    them.
    """
    activities = [ProfilerActivity.CPU]
    on_gpu = device != "cpu"
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)
    # The profiler's library writes lines of its own, which no report needs.
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)
    with profile(activities=activities) as profiler:
        step()
        if on_gpu:
            torch.cuda.synchronize()
    events = profiler.events()
    found = Profiled(operators=of_operators(events, names, on_gpu))
    marked = [event for event in events if event.name.startswith(COMPILED)]
    if marked:
        found.compiled = sum(event.self_cpu_time_total for event in marked) * MICRO
    on_device = [event for event in events if event.device_type == DeviceType.CUDA]
    if on_device:
        of_the_device(found, on_device, events)
    else:
        found.messages = _messages_of_the_host(events)
    return found


def of_operators(events: Iterable, names: set[str], on_gpu: bool) -> dict[str, float]:
    """{operator: seconds}. What an operator calls inside is part of it."""
    found: dict[str, float] = {}
    for event in events:
        name = _short(event.name)
        if name not in names or _inside(event, names):
            continue
        took = event.device_time_total if on_gpu else event.cpu_time_total
        found[name] = found.get(name, 0.0) + took * MICRO
    return found


def _inside(event, names):
    parent = event.cpu_parent
    while parent is not None:
        if _short(parent.name) in names:
            return True
        parent = parent.cpu_parent
    return False


def _short(name):
    return name.removeprefix("aten::")


def of_the_device(found: Profiled, on_device: Iterable, events: Iterable) -> None:
    """Fills in what the device's clock tells: its busy time, and the gaps that follow a wait of the
    host.
    """
    ran = [event for event in on_device if not event.is_user_annotation]
    if not ran:
        return
    kernels = [_interval(event) for event in ran]
    messages = [_interval(event) for event in ran if event.name.startswith(MESSAGES)]
    rest = [_interval(event) for event in ran if not event.name.startswith(MESSAGES)]
    found.kernels = len(kernels)
    found.busy = intervals.length(rest) * MICRO
    found.messages = intervals.without(messages, rest) * MICRO
    waits = [_interval(e)[1] for e in events if e.name.startswith(WAITS)]
    everything = intervals.merged(kernels)
    found.span = (everything[-1][1] - everything[0][0]) * MICRO
    for start, end in intervals.gaps(kernels):
        # The host was waiting, and gave the device new work only afterwards.
        if any(start <= moment <= end for moment in waits):
            found.after_waits += (end - start) * MICRO


def _interval(event):
    return event.time_range.start, event.time_range.end


def _messages_of_the_host(events):
    """Seconds in which gloo's threads sent and no operator ran."""
    messages = [_interval(e) for e in events if e.name.startswith(MESSAGES)]
    if not messages:
        return 0.0
    computing = [_interval(e) for e in events if e.name.startswith("aten::")]
    return intervals.without(messages, computing) * MICRO
