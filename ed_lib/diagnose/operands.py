"""What an operator reads and writes: its tensors, their bytes, the format that it computes in."""

import torch
from torch.utils._pytree import tree_leaves

# These read the rows that their indices name, and not the table: as much as they write.
GATHERS = {"embedding", "index_select", "gather", "index", "take"}
# Of what these change, the rows that are named are read and written.
SCATTERS = {"index_put_", "index_add_", "scatter_add_", "scatter_", "index_copy_"}


def bytes_by_rows(name: str, read: list, written: list) -> list[tuple[str, torch.Tensor, int]]:
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


def read_and_written(function, args: tuple, kwargs: dict, result) -> tuple[list, list]:
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
    return strided(read), strided(written)


def address_of(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor begins: the same for all that share it."""
    return tensor.untyped_storage().data_ptr()


def strided(values) -> list[torch.Tensor]:
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
