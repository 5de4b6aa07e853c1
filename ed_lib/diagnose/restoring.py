"""What training changes, kept and put back, bit for bit: a diagnosis trains, and leaves no
trace.
"""

import copy
import random
from typing import Any

import numpy as np
import torch
from torch import nn

# What an object needs to be kept: a model, an optimizer, a scheduler, a GradScaler have both.
METHODS = ("state_dict", "load_state_dict")


class Kept:
    """The state of models, optimizers, schedulers and scalers, and of the random generators of
    Python, NumPy and PyTorch.

    TypeError for what has no ``state_dict``.
    """

    def __init__(self, objects):
        for n, one in enumerate(objects):
            if not all(hasattr(one, method) for method in METHODS):
                raise TypeError(
                    f"restore[{n}] is of {type(one).__name__}; wanted a model, an optimizer or "
                    "what else has a state_dict"
                )
        self._modules = [_Module(one) for one in objects if isinstance(one, nn.Module)]
        others = [one for one in objects if not isinstance(one, nn.Module)]
        self._others: list[tuple[Any, dict]] = [
            (one, copy.deepcopy(one.state_dict())) for one in others
        ]
        # NumPy's old generator is the one that training loops share.
        of_numpy = np.random.get_state()  # noqa: NPY002
        self._random = (random.getstate(), of_numpy, torch.get_rng_state())
        self._random_of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def put_back(self) -> None:
        """Makes everything what it was."""
        for module in self._modules:
            module.put_back()
        for one, state in self._others:
            one.load_state_dict(state)
        for_python, for_numpy, for_torch = self._random
        random.setstate(for_python)
        np.random.set_state(for_numpy)  # noqa: NPY002
        torch.set_rng_state(for_torch)
        if self._random_of_gpus:
            torch.cuda.set_rng_state_all(self._random_of_gpus)


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

    @torch.no_grad()
    def put_back(self):
        for tensor, value in self._values:
            tensor.copy_(value)
        for parameter, gradient, value in self._gradients:
            if gradient is not None and gradient.layout == torch.strided:
                parameter.grad = gradient.copy_(value)
            else:
                parameter.grad = value
        for part, training in self._modes:
            part.training = training
