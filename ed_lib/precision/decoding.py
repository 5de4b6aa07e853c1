"""A transformer that writes: one character after another, with the keys and values of those before kept."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ed_lib.ed.language import Transformer, check_numbers, normal


class Decoder:
    """Reads characters one by one. The keys and values of earlier ones do not change, so they are computed
    once and kept: a key-value cache. product: a weight (O, I) of the blocks → a function x (1, I) → (1, O).
    """

    def __init__(self, net: Transformer, product: Callable = lambda w: lambda x: x @ w.T):
        self.net, self.length = net, 0
        blocks = {name: p.detach().T for name, p in net.parameters.items() if name[0].isdigit()}  # (O, I)
        self.products = {name: product(w.contiguous()) for name, w in blocks.items()}
        size = net.parameters["places"].shape[1] // net.heads
        self.keys, self.values = torch.zeros(2, net.layers, net.heads, net.context, size)

    @torch.no_grad()
    def step(self, character: int) -> Tensor:
        """The next character's number → the scores of the one after it, (V,). ValueError when the network's
        context is full: its places are absolute, so what is kept cannot move.
        """
        if self.length == self.net.context:
            raise ValueError(f"{self.length} characters are read, and the context holds no more")
        check_numbers(torch.tensor(character), self.net.vocabulary)
        p, at = self.net.parameters, self.length
        stream = (p["embedding"][character] + p["places"][at])[None]  # (1, C)
        for n in range(self.net.layers):
            stream = stream + self.products[f"{n}.answer"](self.attend(n, at, normal(stream)))
            wide = self.products[f"{n}.up"](normal(stream)).relu()  # (1, 4 C)
            stream = stream + self.products[f"{n}.down"](wide)
        self.length += 1
        return (normal(stream) @ p["scores"])[0]

    def attend(self, n: int, at: int, x: Tensor) -> Tensor:
        """Layer n's attention for the character at this place: (1, C) → (1, C)."""
        q, k, v = self.products[f"{n}.ask"](x).view(3, self.net.heads, -1)  # (heads, C / heads) each
        self.keys[n, :, at], self.values[n, :, at] = k, v
        keys, values = self.keys[n, :, : at + 1], self.values[n, :, : at + 1]  # (heads, at + 1, C / heads)
        return F.scaled_dot_product_attention(q[:, None], keys, values).reshape(1, -1)
