"""Where the memory of a training step goes: counted in bytes, tensor by tensor.

Half the bits do not halve the memory. What stays from step to step (parameters, optimizer) and what
the forward pass leaves for the backward pass (activations, casts) are counted apart: few bits
change the latter.
"""

import weakref
from collections.abc import Callable
from dataclasses import astuple, dataclass

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Memory:
    """Bytes. What several tensors share, as views do, is counted once, in the first place that it
    fits.
    """

    parameters: int  # the model's, and its buffers
    gradients: int  # at the end of the backward pass
    optimizer: int  # its state, such as Adam's two averages
    inputs: int  # what the step is given
    activations: int  # what the forward pass made and keeps for the backward pass
    # copies of parameters in another dtype, kept for the backward pass too; autocast makes them
    casts: int

    @property
    def total(self) -> int:
        """The sum: more than is there at any one time, since activations are freed as gradients are
        made.
        """
        return sum(astuple(self))


def account(
    model: nn.Module, optimizer: torch.optim.Optimizer, run: Callable, *inputs: Tensor
) -> Memory:
    """Makes one training step of ``model`` with the loss ``run(*inputs)``, and counts its bytes.

    The step is not scaled, and it changes the parameters. What is kept by other means than
    autograd's is not seen, such as what checkpointing keeps.
    """
    optimizer.zero_grad()
    own = [*model.parameters(), *model.buffers()]
    # What autograd keeps; a weak set forgets what autograd forgets.
    kept: weakref.WeakSet = weakref.WeakSet()
    keep = torch.autograd.graph.saved_tensors_hooks(lambda t: _Kept(t, kept), lambda k: k.tensor)
    casts = _Casts(own)
    with keep, casts:
        loss = run(*inputs)
    saved = _storages(each.tensor for each in kept)
    # Parameters and inputs are counted by themselves.
    for storage in _storages([*own, *inputs]):
        saved.pop(storage, None)
    made = sum(saved[storage] for storage in casts.made.keys() & saved.keys())
    # It holds the casts, which the backward pass is to free.
    del casts
    loss.backward()
    gradients = sum(_storages(p.grad for p in own if p.grad is not None).values())
    optimizer.step()
    state = [value for values in optimizer.state.values() for value in values.values()]
    return Memory(
        parameters=sum(_storages(own).values()),
        gradients=gradients,
        optimizer=sum(_storages(value for value in state if isinstance(value, Tensor)).values()),
        inputs=sum(x.nbytes for x in inputs),
        activations=sum(saved.values()) - made,
        casts=made,
    )


class _Kept:
    """A tensor that autograd keeps."""

    def __init__(self, tensor, registry):
        # Else an output would hold its node, and the node the output, for ever.
        self.tensor = tensor.detach()
        registry.add(self)


class _Casts(TorchDispatchMode):
    """Sees which storages are made by casting ``tensors``, or casts of them, to another dtype."""

    def __init__(self, tensors):
        super().__init__()
        self.sources = _storages(tensors)
        # {storage: tensor}. The tensor is held, so that no other gets its address.
        self.made = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default:
            (source,) = _storages(args[:1])
            (made,) = _storages([result])
            # A cast of a cast is a cast: an emulation rounds to 16 bits and back.
            if source in self.sources or source in self.made:
                self.made[made] = result
        return result


def _storages(tensors):
    """{storage: its bytes} of tensors that are alive: what is freed may give its address to
    another.
    """
    storages = ((tensor.device, tensor.untyped_storage()) for tensor in tensors)
    return {(device, storage.data_ptr()): storage.nbytes() for device, storage in storages}
