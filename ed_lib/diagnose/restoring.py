"""What training changes, kept and put back, bit for bit: a diagnosis trains, and leaves no
trace.
"""

import contextlib
import copy
import random

import numpy as np
import torch
from torch import nn

from ed_lib import check

# What an object needs to be kept: a model, an optimizer, a scheduler, a GradScaler have both.
METHODS = ("state_dict", "load_state_dict")


class Kept:
    """The state of models, optimizers, schedulers and scalers, and of the random generators of
    Python, NumPy and PyTorch.

    TypeError for what has no ``state_dict``, and for a model that stands in no list.
    """

    def __init__(self, objects):
        objects = list(check.iterator("restore", objects, "[model, optimizer]"))
        for n, one in enumerate(objects):
            if isinstance(one, type) or not all(hasattr(one, method) for method in METHODS):
                raise TypeError(
                    f"restore[{n}] is of {type(one).__name__}; wanted a model, an optimizer or "
                    "what else has a state_dict"
                )
        self._kept = [_keeper(one) for one in objects]
        # NumPy's old generator is the one that training loops share.
        of_numpy = np.random.get_state()  # noqa: NPY002
        self._random = (random.getstate(), of_numpy, torch.get_rng_state())
        self._random_of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    @property
    def holds_state(self) -> bool:
        """Whether there is more than the random generators to put back."""
        return bool(self._kept)

    def put_back(self) -> None:
        """Makes everything what it was."""
        for one in self._kept:
            one.put_back()
        for_python, for_numpy, for_torch = self._random
        random.setstate(for_python)
        np.random.set_state(for_numpy)  # noqa: NPY002
        torch.set_rng_state(for_torch)
        if self._random_of_gpus:
            torch.cuda.set_rng_state_all(self._random_of_gpus)


def _keeper(one):
    if isinstance(one, nn.Module):
        return _Module(one)
    if isinstance(one, torch.optim.Optimizer):
        return _Optimizer(one)
    return _Other(one)


class _Module:
    """A model's parameters with their gradients, its buffers, those too that its state_dict leaves
    out, and which of its parts are in training mode.
    """

    def __init__(self, module):
        tensors = [*module.parameters(), *module.buffers()]
        self._values = [(tensor, tensor.detach().clone()) for tensor in tensors]
        gradients = [(each, each.grad) for each in module.parameters()]
        self._gradients = [
            (each, grad, None if grad is None else grad.detach().clone())
            for each, grad in gradients
        ]
        self._modes = [(part, part.training) for part in module.modules()]
        # A forward pass may assign a new tensor to a buffer, in place of changing the old one.
        owned = [each for part in module.modules() for each in (part._parameters, part._buffers)]
        self._owned = [(names, dict(names)) for names in owned]

    @torch.no_grad()
    def put_back(self):
        for names, tensors in self._owned:
            names.clear()
            names.update(tensors)
        for tensor, value in self._values:
            tensor.copy_(value)
        for parameter, gradient, value in self._gradients:
            if gradient is not None and gradient.layout == torch.strided:
                parameter.grad = gradient.copy_(value)
            else:
                parameter.grad = value
        for part, training in self._modes:
            part.training = training


class _Optimizer:
    """An optimizer's state and the options of its groups. Its own ``load_state_dict`` would turn a
    float32 state of a bfloat16 parameter into bfloat16.
    """

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._state = {key: copy.deepcopy(state) for key, state in optimizer.state.items()}
        self._groups = [
            (group, {name: copy.deepcopy(v) for name, v in group.items() if name != "params"})
            for group in optimizer.param_groups
        ]

    def put_back(self):
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        for group, options in self._groups:
            parameters = group["params"]
            group.clear()
            group.update(params=parameters, **options)


class _Other:
    """A scheduler, a GradScaler, and what else has a state_dict."""

    def __init__(self, one):
        self._one = one
        self._state = copy.deepcopy(one.state_dict())

    def put_back(self):
        if hasattr(self._one, "get_scale"):
            # Where a step raised, a scaler remembers that the gradients are unscaled; only update()
            # forgets that. One that has scaled nothing yet has nothing to forget, and says so.
            with contextlib.suppress(AssertionError, RuntimeError):
                self._one.update(self._one.get_scale())
        self._one.load_state_dict(self._state)
