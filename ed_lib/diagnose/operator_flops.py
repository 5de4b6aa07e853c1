"""FLOPs of an operator: PyTorch's own formulas, and ours where its counter says 0. A multiplication
and an addition are two; what a pointwise operator computes is not counted, since its bytes take
longer.
"""

from math import prod
from typing import Any

from torch.utils import flop_counter

BACKWARD = 2  # passes of a product for its two gradients, over one forward


def count(function: Any, name: str, args: tuple, kwargs: dict, result: Any) -> int:
    """The FLOPs of one call of the operator ``function``, whose short name is ``name``: 0 for what
    multiplies no matrices.
    """
    formula = flop_counter.flop_registry.get(function._overloadpacket)  # noqa: SLF001
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=result))
    ours = FORMULAS.get(name)
    return ours(args, result) if ours else 0


def _rnn_layer(args, result):
    """x (T, B, inputs) and a layer's two weights, (4H, inputs) and (4H, H): each meets T·B rows."""
    steps, batch = args[0].shape[:2]
    return 2 * steps * batch * (args[1].numel() + args[2].numel())


def _rnn_layer_backward(args, result):
    return BACKWARD * _rnn_layer(args, result)


def _rnn(args, result):
    """cuDNN's: x (T, B, inputs) and a list of all weights and biases."""
    steps, batch = args[0].shape[:2]
    return 2 * steps * batch * sum(weight.numel() for weight in args[1] if weight.dim() > 1)


def _rnn_backward(args, result):
    return BACKWARD * _rnn(args, result)


def _linear(args, result):
    """x (…, inputs) and a weight (outputs, inputs), however it is packed."""
    return 2 * args[0].numel() * result.shape[-1]


def _product_of_vectors(args, result):
    matrix = next(tensor for tensor in args if hasattr(tensor, "dim") and tensor.dim() == 2)
    return 2 * prod(matrix.shape)


def _dot(args, result):
    return 2 * args[0].numel()


FORMULAS = {
    "mkldnn_rnn_layer": _rnn_layer,
    "mkldnn_rnn_layer_backward": _rnn_layer_backward,
    "_cudnn_rnn": _rnn,
    "_cudnn_rnn_backward": _rnn_backward,
    "_linear_pointwise": _linear,
    "mkldnn_linear": _linear,
    "addmv": _product_of_vectors,
    "mv": _product_of_vectors,
    "dot": _dot,
}
