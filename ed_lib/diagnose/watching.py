"""Every operator that a function runs, forward and backward pass and optimizer, watched at
PyTorch's dispatcher: the bytes that it touches, its FLOPs, the host's seconds, the line it came
from. Counted from no formula of a network.
"""

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ed_lib.diagnose import operator_flops

# Memory, and no work. Views are free as well.
FREE = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
# These two are views, though PyTorch does not say so of them.
FREE |= {"_unsafe_view", "lift_fresh"}
# Marks that PyTorch leaves for its own profiler
MARKS = "profiler::"
# What hands a number to the host: on a GPU the host waits for it.
SYNCHRONISING = {"_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "_unique2"}
# These read the rows that their indices name, and not the table: as much as they write.
GATHERS = {"embedding", "index_select", "gather", "index", "take"}
# Of what these change, the rows that are named are read and written.
SCATTERS = {"index_put_", "index_add_", "scatter_add_", "scatter_", "index_copy_"}
LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


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
    it computes; ``seconds`` are the host's, and ``outside`` those since the operator before it;
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
    touches: list[Touch] = field(default_factory=list)
    moves_between: bool = False  # host and device
    own: float = 0.0  # seconds of its work: ``seconds`` without what any call takes

    @property
    def bytes(self) -> int:
        return sum(touch.bytes for touch in self.touches)

    @property
    def synchronises(self) -> bool:
        return self.operator in SYNCHRONISING


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
        self.peak = 0  # bytes of all that was made since the watch began and lived at one time
        self.tail = 0.0  # seconds from the last operator to the end
        self._held = 0
        self._alive: set[int] = set()  # addresses
        self._returned = perf_counter()  # when it had dealt with the operator before

    def __enter__(self):
        self._returned = perf_counter()
        self._hooks = [
            register_optimizer_step_pre_hook(lambda *_: self._set_optimizing(True)),
            register_optimizer_step_post_hook(lambda *_: self._set_optimizing(False)),
        ]
        return super().__enter__()

    def __exit__(self, *error):
        for hook in self._hooks:
            hook.remove()
        self.tail = perf_counter() - self._returned
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
        start = perf_counter()
        result = function(*args, **kwargs)
        seconds = perf_counter() - start
        # "aten::mm.out" → "mm"
        library, name = function.name().split("::")
        name = name.split(".")[0]
        self._hold(args, kwargs, result)
        if name in FREE or function.is_view or function.name().startswith(MARKS):
            self._returned = perf_counter()
            return result
        read, written = _read_and_written(function, args, kwargs, result)
        devices = {tensor.device for tensor in read + written}
        made = written or read
        call = Call(
            phase=self._phase(),
            operator=name if library == "aten" else f"{library}::{name}",
            shapes=tuple(tuple(tensor.shape) for tensor in read),
            dtype=_dtype(written + read),
            flops=operator_flops.count(function, name, args, kwargs, result),
            seconds=seconds,
            outside=start - self._returned,
            place=_place(),
            device=made[0].device.type if made else "cpu",
            reads=tuple(_address(tensor) for tensor in read),
            moves_between=len({device.type for device in devices}) > 1
            and name in {"copy_", "_to_copy"},
        )
        call.touches = self._touches(name, read, written)
        self.calls.append(call)
        self._returned = perf_counter()
        return result

    def _hold(self, args, kwargs, result):
        """Counts the memory that a result has of its own, until nothing holds it any more."""
        given = {_address(tensor) for tensor in _strided(tree_leaves((args, kwargs)))}
        for tensor in _strided(tree_leaves(result)):
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if address in given or address in self._alive:
                continue
            self._alive.add(address)
            self._held += storage.nbytes()
            weakref.finalize(storage, self._free, address, storage.nbytes())
        self.peak = max(self.peak, self._held)

    def _free(self, address, size):
        self._alive.discard(address)
        self._held -= size

    def _touches(self, name, read, written):
        """What an operator reads and writes, each with its distance; tensors that are read twice by
        one operator are read once.
        """
        found = []
        seen = set()
        sizes = _bytes_by_rows(name, read, written)
        moved = self._moved + sum(size for _, _, size in sizes)
        for kind, tensor, size in sizes:
            address = _address(tensor)
            key = (kind, address, tensor.storage_offset(), tensor.shape, tensor.stride())
            if key in seen or not size:
                continue
            seen.add(key)
            before = self._touched_at.get(address)
            # What this very operator touches has to fit too.
            found.append(Touch(size, None if before is None else moved - before))
        for _, tensor, _ in sizes:
            self._touched_at[_address(tensor)] = moved
        self._moved = moved
        return found


def _bytes_by_rows(name, read, written):
    """[("read" or "written", tensor, bytes)]; a gather reads of its table what it writes."""
    sizes = [("read", tensor, addressed(tensor)) for tensor in read]
    sizes += [("written", tensor, addressed(tensor)) for tensor in written]
    if name in GATHERS:
        out = sum(addressed(tensor) for tensor in written)
        kind, table, size = sizes[0]
        sizes[0] = (kind, table, min(size, out))
    elif name in SCATTERS:
        changed = {id(tensor) for tensor in written}
        rows = max(
            (addressed(t) for t in read if id(t) not in changed and t.is_floating_point()),
            default=0,
        )
        sizes = [(k, t, min(size, rows) if id(t) in changed else size) for k, t, size in sizes]
    return sizes


def addressed(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's different numbers: a dimension that was expanded counts once."""
    numbers = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numbers *= size if stride or not size else 1
    return numbers * tensor.element_size()


def _read_and_written(function, args, kwargs, result):
    """The tensors that an operator reads and those it writes, by its schema. An argument that is
    changed in place is both; one that is only written stands among the keywords, as ``out`` does,
    or is the target of a copy.
    """
    read: list = []
    written: list = []
    is_copy = function.name().startswith(("aten::copy_", "aten::zero_", "aten::fill_"))
    for n, argument in enumerate(function._schema.arguments):
        given = args[n] if n < len(args) else kwargs.get(argument.name)
        tensors = tree_leaves(given)
        is_changed = argument.alias_info is not None and argument.alias_info.is_write
        is_only_written = is_changed and (argument.kwarg_only or is_copy)
        if is_changed:
            written += tensors
        if not is_only_written:
            read += tensors
    # What changes no argument writes its result.
    written = written or tree_leaves(result)
    return _strided(read), _strided(written)


def _address(tensor):
    return tensor.untyped_storage().data_ptr()


def _strided(values):
    """The tensors among them that have memory of their own layout; oneDNN's and sparse ones tell
    none of it.
    """
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.layout == torch.strided]


def _dtype(tensors):
    """ "float32": the narrowest of the floating formats, in which an operator computes."""
    floating = [tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point]
    chosen = min(floating, key=lambda dtype: dtype.itemsize, default=None)
    if chosen is None:
        chosen = tensors[0].dtype if tensors else torch.float32
    return str(chosen).removeprefix("torch.")


def _place():
    """ "train.py:41", the innermost line that is not PyTorch's nor ours; of a backward pass, the
    line that asked for it.
    """
    frame = sys._getframe(2)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"


def _short(file):
    # IPython names a cell by a temporary file, or by its number.
    return "a cell" if "ipykernel" in file or file.startswith("<") else Path(file).name
