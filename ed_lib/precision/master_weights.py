"""Master weights: float32 copies of low-precision parameters, which the optimizer steps.

float16 has 11 significant bits, bfloat16 has 8. A step smaller than 1/2048, or 1/256, of a weight is rounded
away, however often it comes. In the copies such steps add up. Micikevicius and others, "Mixed Precision
Training" (2018), section 3.1.
"""

from collections.abc import Iterable

import torch
from torch import nn

LOW = (torch.float16, torch.bfloat16)


class MasterWeights:
    """Steps float32 copies of ``parameters`` with any torch optimizer, and rounds them back. It stands where
    an optimizer stands: also in ``scaler.step(...)``, of our GradScaler or of torch's.

    ::

        model = models.lenet().half()
        optimizer = MasterWeights(model, lambda masters: torch.optim.Adam(masters, lr=1e-3))

    parameters: a module, or an iterable of tensors, of float16, bfloat16 or float32. Those that require no
    gradient are left out; one that is float32 is its own master. They are to hold their weights before.
    make_optimizer: is given the list of masters and returns a torch optimizer of them, here ``optimizer``
    (schedulers take that one).

    A step is three things: :meth:`pull_gradients`, the optimizer's step, :meth:`push_weights`.
    ValueError for another dtype, no parameter, one that is given twice, or an optimizer of other tensors.
    """

    def __init__(self, parameters, make_optimizer):
        self.parameters = _check(parameters)
        if not callable(make_optimizer):
            kind = type(make_optimizer).__name__
            raise TypeError(f"make_optimizer is a {kind}; wanted a function from the masters to an optimizer")
        self.masters = [nn.Parameter(p.detach().float()) if p.dtype in LOW else p for p in self.parameters]
        self.optimizer = make_optimizer(self.masters)
        if not hasattr(self.optimizer, "param_groups"):
            kind = type(self.optimizer).__name__
            raise TypeError(f"make_optimizer returned a {kind}; wanted an optimizer of the masters")
        stepped = [p for group in self.optimizer.param_groups for p in group["params"]]
        if {id(p) for p in stepped} != {id(p) for p in self.masters}:
            raise ValueError(
                f"make_optimizer returned an optimizer of {len(stepped)} tensors that are not the masters; "
                f"wanted one of the {len(self.masters)} masters that it is given"
            )

    @property
    def param_groups(self):
        """The optimizer's groups of masters, with the gradients of the latest backward pass.

        A scaler looks here for what to unscale, so they are pulled first. To clip without a scaler, call
        :meth:`pull_gradients`, then clip those of ``masters``.
        """
        self.pull_gradients()
        return self.optimizer.param_groups

    @property
    def state(self):
        """The optimizer's state: {master: its tensors}."""
        return self.optimizer.state

    @torch.no_grad()
    def pull_gradients(self):
        """Copies each low-precision gradient to its master, as float32, if it is new: one that was pulled and
        has not changed since leaves its master's gradient alone, which may be unscaled and clipped by now.
        """
        for p, master in self._copies():
            if p.grad is None:
                master.grad = None
            elif getattr(p.grad, "pulled", None) != p.grad._version:  # counts the changes in place
                master.grad = p.grad.float()
                p.grad.pulled = p.grad._version

    @torch.no_grad()
    def push_weights(self):
        """Rounds each master to its low-precision parameter, in place."""
        for p, master in self._copies():
            p.copy_(master)  # to the nearest, ties to even

    def step(self):
        """One step of the optimizer on the masters. Returns what the optimizer's step returns.

        The float32 gradients are freed after it: 4 bytes a parameter that only a step needs.
        """
        self.pull_gradients()
        result = self.optimizer.step()
        self.push_weights()
        for _, master in self._copies():
            master.grad = None
        return result

    def zero_grad(self):
        """Frees the gradients of parameters and masters."""
        for tensor in (*self.parameters, *self.masters):
            tensor.grad = None

    def state_dict(self):
        """The masters, which the model's own state has only rounded, and the optimizer's state."""
        return {"masters": [m.detach() for m in self.masters], "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state_dict):
        """Goes on from a ``state_dict``; the parameters are rounded from its masters."""
        if missing := {"masters", "optimizer"} - state_dict.keys():
            raise ValueError(
                f"state_dict lacks {', '.join(sorted(missing))}; wanted what state_dict() returns"
            )
        shapes, wanted = ([tuple(t.shape) for t in s] for s in (state_dict["masters"], self.masters))
        if shapes != wanted:
            raise ValueError(f"state_dict holds masters of the shapes {shapes}; wanted {wanted}")
        self.optimizer.load_state_dict(state_dict["optimizer"])  # checks its own before it changes anything
        with torch.no_grad():
            for master, saved in zip(self.masters, state_dict["masters"], strict=True):
                master.copy_(saved)
        self.push_weights()

    def _copies(self):
        pairs = zip(self.parameters, self.masters, strict=True)
        return [(p, master) for p, master in pairs if p is not master]


def _check(parameters):
    """The tensors that require a gradient, as a list; ValueError or TypeError as the class says."""
    if isinstance(parameters, torch.Tensor) or not isinstance(parameters, (nn.Module, Iterable)):
        raise TypeError(f"parameters is a {type(parameters).__name__}; wanted a module or a list of tensors")
    tensors = list(parameters.parameters() if isinstance(parameters, nn.Module) else parameters)
    for i, p in enumerate(tensors):
        if not isinstance(p, torch.Tensor):
            raise TypeError(f"parameters[{i}] is a {type(p).__name__}; wanted a tensor")
        if p.dtype not in (*LOW, torch.float32):
            raise ValueError(f"parameters[{i}] is {p.dtype}; wanted float16, bfloat16 or float32")
        if not p.is_leaf:
            raise ValueError(f"parameters[{i}] is computed from others; wanted a leaf, which has a gradient")
    if len({id(p) for p in tensors}) < len(tensors):
        raise ValueError("parameters holds a tensor twice; wanted each once")
    trained = [p for p in tensors if p.requires_grad]
    if not trained:
        raise ValueError("parameters holds no tensor that requires a gradient; wanted at least one")
    return trained
