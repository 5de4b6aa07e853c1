"""Memory that a step holds: what autograd keeps for the backward pass, and what training needs
besides.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from ed_lib.diagnose.verdict import Held


class Saved:
    """Bytes of the different tensors that autograd keeps for the backward pass; not a model's
    parameters, nor what only looks at them.
    """

    def __init__(self):
        self.bytes = 0

    def counting(self) -> AbstractContextManager:
        """A context in which they are counted."""
        seen = set()

        def keep(tensor):
            storage = tensor.untyped_storage()
            is_parameter = tensor.requires_grad and tensor.is_leaf
            base = tensor._base  # noqa: SLF001
            looks_at_one = base is not None and base.is_leaf and base.requires_grad
            if storage.data_ptr() not in seen and not is_parameter and not looks_at_one:
                seen.add(storage.data_ptr())
                self.bytes += storage.nbytes()
            return tensor

        return saved_tensors_hooks(keep, lambda tensor: tensor)

    def count(self, watch: AbstractContextManager, run: Callable) -> None:
        """Runs a watched step and counts; not what ``torch.func`` keeps, which refuses."""
        try:
            with watch, self.counting():
                run()
        except RuntimeError as error:
            if "support saved tensor hooks" not in str(error):
                raise
            self.bytes = 0
            with watch:
                run()


def begin_to_hold(device: str) -> None:
    """Lets a GPU's allocator forget what other work has held, such as the measurement of a
    machine's ceilings.
    """
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def held(optimizers: Iterable[torch.optim.Optimizer], saved: int, peak: int, device: str) -> Held:
    """The :class:`Held` bytes of all that these optimizers train; ``saved`` and ``peak`` are those
    of a watched step. On a GPU its own allocator tells the peak since :func:`begin_to_hold`.
    """
    groups = [group for each in optimizers for group in each.param_groups]
    # Two optimizers may train one parameter.
    parameters = list({id(each): each for group in groups for each in group["params"]}.values())
    gradients = [each.grad for each in parameters if each.grad is not None]
    # LBFGS has lists of tensors.
    states = tree_leaves([list(each.state.values()) for each in optimizers])
    found = Held(
        peak=peak,
        parameters=_bytes(parameters),
        gradients=_bytes(gradients),
        optimizer=_bytes(states),
        activations=saved,
    )
    if device != "cpu":
        found.peak = torch.cuda.max_memory_allocated(device)
        found.reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return found


def _bytes(values):
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    # A sparse gradient holds the rows that are not zero.
    sparse = [value.coalesce() for value in tensors if value.layout == torch.sparse_coo]
    rows = [part for value in sparse for part in (value.indices(), value.values())]
    return sum(value.nbytes for value in tensors + rows if value.layout == torch.strided)
