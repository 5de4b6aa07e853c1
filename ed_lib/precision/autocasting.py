"""Mixed precision by operation: which operations run in few bits, which in float32, and a context
that sees to it, on a CPU without half-precision arithmetic too.

The classes are those of PyTorch's autocast for CUDA (2.15; ``ATen/autocast_mode.h``,
``docs/source/amp.md``), under the names that the operations have in Python, with their aliases and
what is made of them. CPU autocast has other, shorter lists.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ed_lib import check

LISTS = {
    # few bits: products, which hardware does fast, and adds up in float32
    "low": """
        conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
        convolution prelu
        linear matmul mm mv bmm addmm addmv addr addbmm baddbmm einsum chain_matmul linalg_vecdot
        linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
        __matmul__ __rmatmul__ linalg_matmul
        """,
    # reductions, losses, and what grows or shrinks quickly
    "float32": """
        acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
        layer_norm native_layer_norm rms_norm group_norm norm normalize frobenius_norm nuclear_norm
        cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d cross_entropy
        hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
        multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
        binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
        upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d
        upsample_trilinear3d upsample_bicubic2d prod softmax softmin log_softmax cumprod cumsum sum
        linalg_vector_norm linalg_matrix_norm vector_norm matrix_norm __pow__ __rpow__ __rdiv__
        __rtruediv__ arccos arcsin square sum_to_size trapz trapezoid cumulative_trapezoid
        linalg_norm special_erfinv special_expm1 special_log1p special_softmax special_log_softmax
        special_logsumexp gaussian_nll_loss multilabel_soft_margin_loss
        triplet_margin_with_distance_loss pairwise_distance gumbel_softmax local_response_norm
        lp_pool1d lp_pool2d lp_pool3d interpolate upsample upsample_nearest upsample_bilinear
        """,
    # every input in the widest type among the inputs
    "widest": """
        addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler grid_sample index_put
        tensordot scatter_add
        arctan2 inner
        """,
    # refused, since its gradient does not fit into few bits
    "banned": "binary_cross_entropy",
}
# {name in torch: its class}. All other operations follow: they run in the type of their inputs.
CLASSES = {name: kind for kind, names in LISTS.items() for name in names.split()}
HALVES = (torch.float16, torch.bfloat16)
# Functions that hide operations of several classes.
OPAQUE = """multi_head_attention_forward lstm gru rnn_tanh rnn_relu linear_cross_entropy cov
    corrcoef
    matrix_power linalg_matrix_power pinverse linalg_pinv""".split()


class autocast(TorchFunctionMode):  # lower case, as torch.autocast
    """``with autocast(torch.float16):`` runs each operation inside in the type of its class.

    On a CPU a product is emulated: its inputs are rounded to ``dtype``, it is computed in float32,
    and its result is rounded, as on a GPU. The backward pass needs no context: the gradient of a
    cast is a cast, so gradients are rounded where their tensors were, and those of float32
    parameters arrive in float32.

    As with torch.autocast, what is float64, has no floating type, writes into ``out=`` or names a
    ``dtype=`` is left alone, and so are operations in place. Other than there, nothing is cached,
    and functions that hide operations of several classes (multi-head attention, whole LSTMs) are
    refused.
    """

    def __init__(self, dtype: torch.dtype = torch.float16):
        super().__init__()
        check.choice("dtype", dtype, HALVES)
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        dtypes = [each.dtype for each in _tensors(args, kwargs) if _eligible(each)]
        if not dtypes:
            return func(*args, **kwargs)
        _refuse(name)
        kind = CLASSES.get(name, "follows")
        # Among inputs of 16 bits alone there is nothing to widen.
        same = kind == "follows" or (kind == "widest" and torch.float32 not in dtypes)
        if same or _chooses_for_itself(kwargs):
            return func(*args, **kwargs)
        if kind == "low":
            return self.product(func, args, kwargs)
        return func(*_cast(args, torch.float32), **_cast(kwargs, torch.float32))

    def product(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        """A product with all its tensors in ``dtype``."""
        args = _cast(args, self.dtype)
        kwargs = _cast(kwargs, self.dtype)
        # A GPU has products of 16 bits, and adds them up in float32 by itself.
        if any(tensor.device.type != "cpu" for tensor in _tensors(args, kwargs)):
            return func(*args, **kwargs)
        # Two mantissas of 11 bits make one of 22, which float32 holds: no product is rounded.
        result = func(*_cast(args, torch.float32), **_cast(kwargs, torch.float32))
        return _cast(result, self.dtype)


def _refuse(name):
    """RuntimeError for what has no right type here."""
    if name in OPAQUE:
        raise RuntimeError(
            f"{name} is made of operations of several classes; wanted these one by one"
        )
    if CLASSES.get(name) == "banned":
        raise RuntimeError(
            f"{name} has gradients up to 1 / (1 − p), too large for few bits; "
            "wanted binary_cross_entropy_with_logits"
        )


def _chooses_for_itself(kwargs):
    """Whether a call says what its type is, or is in no list though its name is."""
    if kwargs.get("out") is not None or kwargs.get("dtype") is not None:
        return True
    # Interpolation by means is pooling, and pooling is in no list.
    return kwargs.get("mode") == "area"


def _tensors(args, kwargs):
    """All tensors of a call, in lists and dicts too."""
    leaves = pytree.tree_leaves([args, kwargs])
    return [each for each in leaves if torch.is_tensor(each)]


def _eligible(value):
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float32, *HALVES)


def _cast(value, dtype):
    """The same nested lists, tuples and dicts, with each eligible tensor in another dtype."""
    return pytree.tree_map(lambda each: each.to(dtype) if _eligible(each) else each, value)
