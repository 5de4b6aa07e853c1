"""What every LSTM here asks of its arguments: of the module whose weights it takes, of a sequence
and a state.
"""

from typing import Any

import torch

from ed_lib import check

REFUSED = {  # of nn.LSTM's options: what each has to be
    "batch_first": False,
    "bias": True,
    "dropout": 0.0,
    "bidirectional": False,
    "proj_size": 0,
}


def check_module(module: torch.nn.LSTM) -> None:
    """TypeError unless ``module`` is a torch.nn.LSTM, ValueError if it has what no rung has."""
    if not isinstance(module, torch.nn.LSTM):
        raise TypeError(f"module is a {type(module).__name__}; wanted a torch.nn.LSTM")
    for name, wanted in REFUSED.items():
        found = getattr(module, name)
        if found != wanted:
            raise ValueError(f"module has {name}={found}; wanted {name}={wanted}")


def check_input(x: torch.Tensor, state: Any, w_ih: torch.Tensor, sizes: tuple[int, int]) -> tuple:
    """x (T, B, I), contiguous, and the state (h0, c0), (L, B, H) each, of zeros for None, once it
    is known that they fit to W_ih (4H, I) and to ``sizes``, which are (L, H).
    """
    _check_tensor("x", x, ("T", "B", w_ih.shape[1]), w_ih)
    layers, hidden = sizes
    batch = x.shape[1]
    shape = (layers, batch, hidden)
    if state is None:
        # Twice the same: nobody writes to what a sequence starts from.
        zeros = torch.zeros(shape, dtype=x.dtype, device=x.device)
        return x.contiguous(), (zeros, zeros)
    if not isinstance(state, tuple | list) or len(state) != 2:
        raise TypeError(f"state is {type(state).__name__}; wanted the pair (h0, c0), or None")
    for name, tensor in zip(("h0", "c0"), state, strict=True):
        _check_tensor(name, tensor, shape, w_ih)
    return x.contiguous(), state


def _check_tensor(name, tensor, shape, like):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; wanted a torch.Tensor")
    check.shape(name, tuple(tensor.shape), shape)
    check.choice(f"{name}.dtype", tensor.dtype, (like.dtype,))
    check.choice(f"{name}.device", tensor.device, (like.device,))
