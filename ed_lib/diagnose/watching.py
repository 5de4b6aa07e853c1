"""Every operator that a function runs, forward and backward pass and optimizer, watched at
PyTorch's dispatcher: the bytes that it touches, its FLOPs, the host's seconds, the line it came
from. Counted from no formula of a network.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from ed_lib import machine
from ed_lib.diagnose import operands, operator_flops, places

# Memory, and no work. Views are free as well.
FREE = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
# These are views, though PyTorch does not say so of them.
FREE |= {"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "lift_fresh"}
# Marks that PyTorch leaves for its own profiler
MARKS = "profiler::"
# What hands a number to the host: on a GPU the host waits for it.
SYNCHRONISING = {"_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "_unique2"}
# The libraries of collectives: of torch.distributed, and its functional ones
MESSAGES = ("c10d::", "_c10d_functional::")
# Seconds between two operators: a longer gap is no call, but other work of the host. To watch a
# call takes some 20 µs.
LONG = 1e-4


@dataclass
class Touch:
    """``bytes`` that an operator reads or writes, and how many bytes the step has moved since it
    touched them last: as much as a cache has to hold for them to be in it. None: never touched.
    """

    bytes: int
    distance: int | None


@dataclass
class Call:
    """One call of an operator. ``shapes`` are those of its tensors, ``dtype`` the format in which
    it computes; ``seconds`` are the host's, and ``outside`` those of long gaps before it;
    ``place`` is the line of the caller that led to it.
    """

    phase: str
    operator: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    flops: int
    seconds: float
    outside: float
    place: str
    device: str
    reads: tuple[int, ...]  # addresses of the memory of what it reads
    value: int  # two calls with one value computed the same from the same
    touches: list[Touch] = field(default_factory=list)
    moves_between: bool = False  # host and device
    own: float = 0.0  # seconds of its work: ``seconds`` without what any call takes
    pages: float = 0  # of memory that the system handed out meanwhile
    subnormal: float = 0.0  # the share of such numbers in what it is given
    ignored: float = 0.0  # of a loss, the share of its rows that have no label

    @property
    def bytes(self) -> int:
        return sum(touch.bytes for touch in self.touches)

    @property
    def synchronises(self) -> bool:
        return self.operator in SYNCHRONISING

    @property
    def sends(self) -> bool:
        """Whether it is a collective, which waits for other ranks."""
        return self.operator.startswith(MESSAGES)


def watch(function: Callable) -> list[Call]:
    """The :class:`Call` s of ``function()``, in their order, without views and allocations."""
    with Watch() as watching:
        function()
    return watching.calls


class Watch(TorchDispatchMode):
    """Keeps a :class:`Call` for each operator that runs while it is entered.

    What it has seen is used to tell how long ago memory was touched: to see that of a step's first
    operators, watch two steps by one ``Watch``.
    """

    def __init__(self):
        super().__init__()
        self.calls: list[Call] = []
        self._moved = 0
        self._touched_at: dict[int, int] = {}  # address → bytes moved so far
        self._optimizing = False
        self._hooks: list = []
        self.peak = 0  # bytes of all that was seen and lived at one time
        self.tail = 0.0  # seconds of a long gap from the last operator to the end
        self._held = 0
        self._alive: set[int] = set()  # addresses
        self._freed: Counter = Counter()  # how often memory at an address was freed
        self._values: dict[tuple, int] = {}  # a tensor's state → the value of what made it
        self._outside = 0.0  # seconds of such gaps since the last operator that counts
        self._returned = perf_counter()  # when it had dealt with the operator before

    def __enter__(self):
        self._outside = 0.0
        self._returned = perf_counter()
        self._hooks = [
            register_optimizer_step_pre_hook(lambda *_: self._set_optimizing(True)),
            register_optimizer_step_post_hook(lambda *_: self._set_optimizing(False)),
        ]
        return super().__enter__()

    def __exit__(self, *error):
        for hook in self._hooks:
            hook.remove()
        gap = perf_counter() - self._returned
        self.tail = self._outside + (gap if gap > LONG else 0.0)
        # A step that raised in its optimizer had no post hook.
        self._optimizing = False
        return super().__exit__(*error)

    def _set_optimizing(self, now):
        self._optimizing = now

    def _phase(self):
        if torch._C._current_autograd_node() is not None:  # noqa: SLF001
            return "backward"
        # An optimizer that is given a closure runs forward passes inside its step.
        return "optimizer" if self._optimizing and not torch.is_grad_enabled() else "forward"

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():
            # Elsewhere autograd has taken apart what is made of other operators.
            parts = self._of_parts(function, args, kwargs)
            if parts is not NotImplemented:
                return parts
        pages = machine.pages_handed_out()
        start = perf_counter()
        gap = start - self._returned
        if gap > LONG:
            self._outside += gap
        result = function(*args, **kwargs)
        seconds = perf_counter() - start
        pages = machine.pages_handed_out() - pages
        # "aten::mm.out" → "mm"
        library, name = function.name().split("::")
        name = name.split(".")[0]
        self._hold(args, kwargs, result)
        if name in FREE or function.is_view or function.name().startswith(MARKS):
            self._returned = perf_counter()
            return result
        read, written = operands.read_and_written(function, args, kwargs, result)
        devices = {tensor.device for tensor in read + written}
        made = written or read
        call = Call(
            phase=self._phase(),
            operator=name if library == "aten" else f"{library}::{name}",
            shapes=tuple(tuple(tensor.shape) for tensor in read),
            dtype=operands.dtype_of(written + read),
            flops=operator_flops.count(function, name, args, kwargs, result),
            seconds=seconds,
            outside=self._outside,
            place=places.line(sys._getframe()),  # noqa: SLF001
            device=made[0].device.type if made else "cpu",
            reads=tuple(operands.address_of(tensor) for tensor in read),
            value=self._number(function, args, kwargs, result),
            moves_between=len({device.type for device in devices}) > 1
            and name in {"copy_", "_to_copy"},
            pages=pages,
        )
        call.touches = self._touches(name, read, written)
        self.calls.append(call)
        self._outside = 0.0
        self._returned = perf_counter()
        return result

    def _of_parts(self, function, args, kwargs):
        """The result of an operator by those that it is made of, each of them watched; else
        NotImplemented.
        """
        TorchDispatchMode.__enter__(self)
        try:
            return function.decompose(*args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)

    def _hold(self, args, kwargs, result):
        """Counts the memory of all that is seen, until nothing holds it any more."""
        for tensor in operands.strided(operands.leaves((args, kwargs, result))):
            storage = tensor.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
            if size and address not in self._alive:
                self._alive.add(address)
                self._held += size
                # A parameter outlives its watcher, and must not keep it.
                weakref.finalize(storage, _free, weakref.ref(self), address, size)
        self.peak = max(self.peak, self._held)

    def free(self, address: int, size: int) -> None:
        """Nothing holds this memory any more."""
        self._alive.discard(address)
        self._freed[address] += 1
        self._held -= size

    def _number(self, function, args, kwargs, result):
        """A number for what an operator computes, the same for the same operator on the same
        inputs: as a compiler finds common subexpressions.
        """
        inputs = []
        for given in operands.leaves((args, kwargs)):
            if isinstance(given, torch.Tensor) and given.layout == torch.strided:
                state = self._state(given)
                where = (given.storage_offset(), given.shape, given.stride())
                inputs.append((self._values.get(state, state), where))
            else:
                inputs.append(str(given))
        value = hash((function, tuple(inputs)))
        if torch.Tag.nondeterministic_seeded in function.tags:
            value = hash((value, len(self.calls)))
        for tensor in operands.strided(operands.leaves(result)):
            self._values[self._state(tensor)] = value
        return value

    def _state(self, tensor):
        """What is the same for two tensors only if their memory has the same numbers."""
        address = operands.address_of(tensor)
        version = 0 if tensor.is_inference() else tensor._version  # noqa: SLF001
        return address, self._freed[address], version

    def _touches(self, name, read, written):
        """What an operator reads and writes, each with its distance; tensors that are read twice by
        one operator are read once.
        """
        found = []
        seen = set()
        sizes = operands.bytes_by_rows(name, read, written)
        moved = self._moved + sum(size for _, _, size in sizes)
        for kind, tensor, size in sizes:
            address = operands.address_of(tensor)
            key = (kind, address, tensor.storage_offset(), tensor.shape, tensor.stride())
            if key in seen or not size:
                continue
            seen.add(key)
            before = self._touched_at.get(address)
            # What this very operator touches has to fit too.
            found.append(Touch(size, None if before is None else moved - before))
        for _, tensor, _ in sizes:
            self._touched_at[operands.address_of(tensor)] = moved
        self._moved = moved
        return found


def _free(watch, address, size):
    if (watcher := watch()) is not None:
        watcher.free(address, size)
