"""Master weights: float32 copies of low-precision parameters, which the optimizer steps.

float16 has 11 significant bits, bfloat16 has 8. A step smaller than 1/2048, or 1/256, of a weight is rounded
away, however often it comes. In the copies such steps add up. Micikevicius and others, "Mixed Precision
Training" (2018), section 3.1.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ed_lib import check


class MasterWeights:
    """Steps float32 copies of ``parameters``, of a module or a list, and rounds them back; one of float32 is
    its own master. It stands where an optimizer stands: also in ``scaler.step(…)``, ours or torch's:
    ``MasterWeights(net.half(), lambda masters: torch.optim.SGD(masters, 0.1))``.
    """

    def __init__(self, parameters: nn.Module | Iterable[torch.Tensor], make_optimizer: Callable):
        tensors = list(parameters.parameters() if isinstance(parameters, nn.Module) else parameters)
        for i, p in enumerate(tensors):
            check.choice(f"parameters[{i}].dtype", p.dtype, (torch.float16, torch.bfloat16, torch.float32))
            if not p.is_leaf:
                raise ValueError(f"parameters[{i}] is computed from others; wanted one that has a gradient")
        self.parameters = [p for p in tensors if p.requires_grad]
        if not self.parameters or len({id(p) for p in tensors}) < len(tensors):
            raise ValueError("parameters holds one twice, or none that requires a gradient; wanted each once")
        low = {p: nn.Parameter(p.detach().float()) for p in self.parameters if p.dtype != torch.float32}
        self.masters, self.copies = [low.get(p, p) for p in self.parameters], list[Any](low.items())
        self.optimizer = make_optimizer(self.masters)  # schedulers take this one
        stepped = [p for group in self.optimizer.param_groups for p in group["params"]]
        if {id(p) for p in stepped} != {id(p) for p in self.masters}:
            raise ValueError(f"make_optimizer steps {len(stepped)} tensors; wanted the masters, no others")

    @property
    def param_groups(self) -> list[dict]:
        """The optimizer's groups of masters, where a scaler looks for gradients: so they are pulled first."""
        self.pull_gradients()
        return self.optimizer.param_groups

    @property
    def state(self) -> dict:
        """The optimizer's state: {master: its tensors}."""
        return self.optimizer.state

    def pull_gradients(self) -> None:
        """Copies each low-precision gradient to its master, as float32, if it is new or has changed: else its
        master's is left alone, which may be unscaled and clipped by now.
        """
        for p, master in self.copies:
            if p.grad is None:
                master.grad = None
            elif getattr(p.grad, "pulled", None) != p.grad._version:  # counts the changes in place
                master.grad = p.grad.float()
                p.grad.pulled = p.grad._version

    @torch.no_grad()
    def push_weights(self) -> None:
        """Rounds each master to its low-precision parameter, in place."""
        for p, master in self.copies:
            p.copy_(master)  # to the nearest, ties to even

    def step(self) -> None:
        """One step of the optimizer on the masters; their gradients are then freed."""
        self.pull_gradients()
        self.optimizer.step()
        self.push_weights()
        for _, master in self.copies:
            master.grad = None

    def zero_grad(self) -> None:
        """Frees the gradients of parameters and masters."""
        for tensor in (*self.parameters, *self.masters):
            tensor.grad = None
