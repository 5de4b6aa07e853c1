"""What an operator reads and writes: its tensors, their bytes, the format that it computes in."""

from collections.abc import Iterable
from typing import Any

import torch

# These read the rows that their indices name, and not the table: as much as they write.
GATHERS = {"embedding", "index_select", "gather", "index", "take"}
# Of what these change, the rows that are named are read and written.
SCATTERS = {"index_put_", "index_add_", "scatter_add_", "scatter_", "index_copy_"}
# A gather as well: of each row the one number that the target names
LOSSES = {"nll_loss_forward", "nll_loss2d_forward"}
# What these change they overwrite, without reading it.
OVERWRITES = {"copy_", "zero_", "fill_", "_foreach_copy_", "_foreach_zero_"}
OVERWRITES |= {"normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_"}
# These ask the argument ``self`` for its shape alone: they, "zeros_like" and "new_zeros".
SHAPED = {"nll_loss_backward", "nll_loss2d_backward", "max_pool2d_with_indices_backward"}
SHAPED |= {"avg_pool2d_backward", "_adaptive_avg_pool2d_backward"}


def leaves(given: Any) -> list:
    """What stands in nested lists, tuples and dicts, in order: all that the dispatcher hands over.
    PyTorch's own ``tree_leaves`` knows more containers, and takes some three times as long, which a
    step of thousands of calls feels.
    """
    if isinstance(given, dict):
        given = given.values()
    elif not isinstance(given, (list, tuple)):
        return [given]
    return [leaf for each in given for leaf in leaves(each)]


def bytes_by_rows(name: str, read: list, written: list) -> list[tuple[str, torch.Tensor, int]]:
    """[("read" or "written", tensor, bytes)]; a gather reads of its table what it writes."""
    sizes = [("read", tensor, addressed(tensor)) for tensor in read]
    sizes += [("written", tensor, addressed(tensor)) for tensor in written]
    if name in GATHERS:
        out = sum(addressed(tensor) for tensor in written)
        kind, table, size = sizes[0]
        sizes[0] = (kind, table, min(size, out))
    elif name in LOSSES:
        kind, table, size = sizes[0]
        sizes[0] = (kind, table, min(size, read[1].numel() * table.element_size()))
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
    # Windows that overlap share their numbers.
    return min(numbers * tensor.element_size(), tensor.untyped_storage().nbytes())


def read_and_written(function: Any, args: tuple, kwargs: dict, result: Any) -> tuple[list, list]:
    """The tensors that an operator reads and those it writes, by its schema. An argument that is
    changed in place is both; one that is only written stands among the keywords, as ``out`` does,
    or is overwritten, as the target of a copy is.
    """
    read: list = []
    written: list = []
    name = function.name().removeprefix("aten::").partition(".")[0]
    asks_for_shape = name in SHAPED or name.endswith("_like") or name.startswith("new_")
    for n, argument in enumerate(function._schema.arguments):
        given = args[n] if n < len(args) else kwargs.get(argument.name)
        tensors = leaves(given)
        is_changed = argument.alias_info is not None and argument.alias_info.is_write
        is_only_written = is_changed and (argument.kwarg_only or name in OVERWRITES)
        is_shape = asks_for_shape and argument.name == "self"
        if is_changed:
            written += tensors
        if not is_only_written and not is_shape:
            read += tensors
    # In place the result is the argument that was changed.
    changed = {id(tensor) for tensor in written}
    written += [value for value in leaves(result) if id(value) not in changed]
    return strided(read), strided(written)


def address_of(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor begins: the same for all that share it."""
    return tensor.untyped_storage().data_ptr()


def strided(values: Iterable) -> list[torch.Tensor]:
    """The tensors among them that have memory of their own layout; oneDNN's and sparse ones tell
    none of it.
    """
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.layout == torch.strided]


def dtype_of(tensors: list[torch.Tensor]) -> str:
    """The first floating format, as "float32": a result's before an input's."""
    floating = [tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point]
    others = [tensor.dtype for tensor in tensors]
    chosen = [*floating, *others, torch.float32][0]
    return str(chosen).removeprefix("torch.")
