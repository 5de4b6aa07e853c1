"""ED learning as formulas: how a layer of cells fires, and how its weights learn from one broadcast
error.

Axes, by letter: k network (one per output), p type of the receiving cell, q type of the sending
cell (0 = excitatory, 1 = inhibitory), b sample of the batch, i sender, o receiver. "..." stands for
any leading axes, so that a stack of layers is updated by the same formula as one. Arrays of NumPy,
PyTorch or CuPy.

What trains a network are the same formulas laid out for speed, in ``layout``, ``ed_on_gpu``
and ``ed_on_cpu``; tests hold them to these. Source: I. Kaneko, "Error diffusion learning
algorithm" (1999), his page and his C program.
"""

from ed_lib.arrays import Array
from ed_lib.ed.space import library

RULES = ("kaneko", "signed")
BIAS_CELL = 0.8  # the constant output of Kaneko's bias cells (his beta)


def sigmoid(u: Array, u0: float) -> Array:
    """σ(u) = 1 / (1 + exp(−2u/u0)), any shape, without overflow for any finite u."""
    xp = library(u)
    # In (0, 1], so that neither branch can overflow.
    e = xp.exp(-abs(u) * (2 / u0))
    return xp.where(u >= 0, 1 / (1 + e), e / (1 + e))


def layer(x: Array, weight: Array, bias: Array, u0: float) -> Array:
    """One layer's outputs: y_p = σ(s_p · (Σ_q x_q W[p, q] + b_p)), with s = (+1, −1).

    x (K, 2, B, I), weight (K, 2, 2, I, O), bias (K, 2, 1, O) → (K, 2, B, O).
    """
    parts = x[:, None] @ weight  # [k,1,q,b,i] @ [k,p,q,i,o] → [k,p,q,b,o]
    total = parts.sum(2) + bias  # (K, 2, B, O)
    # s_p: what excites an excitatory cell calms an inhibitory one.
    u = library(total).stack([total[:, 0], -total[:, 1]], 1)
    return sigmoid(u, u0)


def gains(error: Array, rule: str) -> Array:
    """What the broadcast error becomes at the sending cells: g_q, (B, K) → (K, 2, B, 1).

    "kaneko": g = (d⁺, −d⁻): excitatory senders learn when the output is too low, inhibitory ones
    when it is too high. "signed": g = (d, d): both learn from both (Kaneko's "weight decrement",
    the article's rule).
    """
    d = error.T[..., None]  # (B, K) → (K, B, 1)
    # d.clip(max=0) is −d⁻
    pair = [d.clip(min=0), d.clip(max=0)] if rule == "kaneko" else [d, d]
    return library(error).stack(pair, 1)


def weight_update(x: Array, y: Array, error: Array, alpha: float, rule: str) -> Array:
    """ΔW[p, q] = α · mean_b( g_q[b] · f′(y_p[b]) · x_q[b] ), f′(y) = y(1 − y): σ′ but for Kaneko's
    2/u0.

    x (..., K, 2, B, I) is what the senders sent, y (..., K, 2, B, O) what the receivers answered,
    error (B, K) is target − output → (..., K, 2, 2, I, O). Nothing comes from another layer: "..."
    may be all layers.
    """
    sent = (x * gains(error, rule)).swapaxes(-1, -2)  # (..., K, 2, I, B)
    received = y * (1 - y) * (alpha / y.shape[-2])  # (..., K, 2, B, O)
    # (..., K, 1, 2, I, B) @ (..., K, 2, 1, B, O) → (..., K, 2, 2, I, O)
    return sent[..., None, :, :, :] @ received[..., :, None, :, :]
