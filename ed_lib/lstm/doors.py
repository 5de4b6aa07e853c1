"""What every LSTM here asks of its arguments: of the module whose weights it takes, of a sequence
and a state.
"""

from typing import Any

import torch

from ed_lib import check

REFUSED = {
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
        if (found := getattr(module, name)) != wanted:
            raise ValueError(f"module has {name}={found}; wanted {name}={wanted}")


def check_input(x: torch.Tensor, state: Any, w_ih: torch.Tensor, sizes: tuple[int, int]) -> tuple:
    """x (T, B, I), contiguous, and the state, once it is known that they fit: to W_ih, and (L,
    H).
    """
    if state is not None and (not isinstance(state, tuple | list) or len(state) != 2):
        raise TypeError(f"state is {type(state).__name__}; wanted the pair (h0, c0), or None")
    for name, tensor in zip(("x", "h0", "c0"), (x, *(state or ())), strict=False):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; wanted a torch.Tensor")
        wanted = ("T", "B", w_ih.shape[1]) if name == "x" else (sizes[0], x.shape[1], sizes[1])
        check.shape(name, tuple(tensor.shape), wanted)
        check.choice(f"{name}.dtype", tensor.dtype, (w_ih.dtype,))
        check.choice(f"{name}.device", tensor.device, (w_ih.device,))
    shape = sizes[0], x.shape[1], sizes[1]
    return x.contiguous(), state or (torch.zeros(shape, dtype=x.dtype, device=x.device),) * 2
