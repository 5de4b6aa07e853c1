"""ED learning as formulas: how a layer of cells fires, and how its weights learn from one broadcast error.

Axes, by letter: k network (one per output), p type of the receiving cell, q type of the sending cell (0 =
excitatory, 1 = inhibitory), b sample of the batch, i sender, o receiver. "..." stands for any leading axes,
so that a stack of layers is updated by the same formula as one.

What trains a network are the same formulas laid out for speed, in ``layout``, ``gpu`` and ``cpu``;
tests hold them to these.

Source: I. Kaneko, "Error diffusion learning algorithm" (1999), his page and his C program.
"""

from typing import Any

from ed_lib.arrays import Array, namespace

RULES = ("kaneko", "signed")
BIAS_CELL = 0.8  # the constant output of Kaneko's bias cells (his beta)


def signs(xp: Any, like: Array) -> Array:
    """s = (+1, −1), shape (2, 1, 1), in the dtype and on the device of ``like``."""
    import array_api_compat

    return xp.asarray([[[1.0]], [[-1.0]]], dtype=like.dtype, device=array_api_compat.device(like))


def sigmoid(u: Array, u0: float) -> Array:
    """σ(u) = 1 / (1 + exp(−2u/u0)), any shape, without overflow for any finite u."""
    xp = namespace(u)
    e = xp.exp(-xp.abs(u) * (2 / u0))  # in (0, 1], so neither branch can overflow
    return xp.where(u >= 0, 1 / (1 + e), e / (1 + e))


def slope(y: Array) -> Array:
    """f′(y) = y(1 − y), any shape. Kaneko drops the factor 2/u0 of σ′; so do we."""
    return y * (1 - y)


def layer(x: Array, weight: Array, bias: Array, u0: float) -> Array:
    """One layer's outputs: y_p = σ(s_p · (Σ_q x_q W[p, q] + b_p)).

    x (K, 2, B, I), weight (K, 2, 2, I, O), bias (K, 2, 1, O) → (K, 2, B, O).
    """
    xp = namespace(x, weight)
    parts = xp.matmul(x[:, None, ...], weight)  # [k,1,q,b,i] @ [k,p,q,i,o] → [k,p,q,b,o]
    total = xp.sum(parts, axis=2) + bias  # (K, 2, B, O)
    return sigmoid(signs(xp, total) * total, u0)


def gains(error: Array, rule: str) -> Array:
    """What the broadcast error becomes at the sending cells: g_q, (B, K) → (K, 2, B, 1).

    "kaneko": g = (d⁺, −d⁻): excitatory senders learn when the output is too low, inhibitory ones when it is
    too high.

    "signed": g = (d, d): both learn from both (Kaneko's option "weight decrement", and the source article's
    rule).
    """
    xp = namespace(error)
    d = xp.permute_dims(error, (1, 0))[:, None, :, None]  # (B, K) → (K, 1, B, 1)
    if rule == "kaneko":
        return xp.concat([xp.clip(d, min=0), xp.clip(d, max=0)], axis=1)  # clip(d, max=0) is −d⁻
    return xp.concat([d, d], axis=1)


def weight_update(x: Array, y: Array, error: Array, alpha: float, rule: str) -> Array:
    """ΔW[p, q] = α · mean_b( g_q[b] · f′(y_p[b]) · x_q[b] ).

    x (..., K, 2, B, I) is what the senders sent, y (..., K, 2, B, O) what the receivers answered, error (B,
    K) is target − output → (..., K, 2, 2, I, O). Nothing in it comes from another layer, so "..." may be all
    layers at once.
    """
    xp = namespace(x, y, error)
    sent = xp.matrix_transpose(x * gains(error, rule))  # (..., K, 2, I, B)
    received = slope(y) * (alpha / y.shape[-2])  # (..., K, 2, B, O)
    # (..., K, 1, 2, I, B) @ (..., K, 2, 1, B, O) → (..., K, 2, 2, I, O)
    return xp.matmul(sent[..., None, :, :, :], received[..., :, None, :, :])


def bias_update(y: Array, error: Array, alpha: float) -> Array:
    """Δb_p = α · mean_b( d[b] · f′(y_p[b]) ): y (..., K, 2, B, O) → (..., K, 2, 1, O). For either rule."""
    xp = namespace(y, error)
    d = xp.permute_dims(error, (1, 0))[:, None, :, None]  # (B, K) → (K, 1, B, 1)
    return alpha * xp.mean(d * slope(y), axis=-2, keepdims=True)
