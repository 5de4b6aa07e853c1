"""A network's calls on a GPU: each recorded as one CUDA graph, and none that waits.

A GPU does what it was told a while ago. Whoever asks it a question, such as whether a batch holds a NaN,
waits until it has done all of that, and it then idles until it is told more. So nothing is asked here. What
is given is copied to a fixed place, and one graph is launched. The graph looks at the values itself: a bad
one raises a flag on the device, which keeps all weights as they are from then on, and which travels back
beside the answers. The first call that finds it there raises the error, a few calls late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ed_lib import arrays, devices

if TYPE_CHECKING:
    from ed_lib.ed.network import EDNetwork

LARGEST = 1e30  # of what is taken for a finite number


class OnGPU:
    """Runs ``forward``, ``update`` and ``step`` of an :class:`~ed_lib.ed.EDNetwork` of this batch size.

    By the path "layers" the same work is launched one by one.
    """

    def __init__(self, net: EDNetwork, batch: int):
        like = {"dtype": net.inner.dtype, "device": net.inner.device}
        self.net, self.batch = net, batch
        self.graphs: dict[str, devices.Graph] = {}
        self.x = torch.zeros(batch, net.n_inputs, **like)
        self.target = torch.zeros(batch, net.n_outputs, **like)
        self.error = torch.zeros(batch, net.n_outputs, **like)
        self.answer = torch.zeros(batch, net.n_outputs, **like)  # the outputs
        self.rate = torch.zeros((), **like)  # α
        self.alpha: float | None = None  # what stands in ``rate``
        self.bad = torch.zeros((), dtype=torch.bool, device=net.inner.device)
        self.told = torch.zeros((), dtype=torch.bool, pin_memory=True)  # the flag, on the host
        self.flag = self.told.numpy()  # the same memory, read without asking PyTorch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (B, n_inputs) → the outputs (B, K)."""
        self.raise_if_told()
        self.x.copy_(x)
        self.launch("forward", self.do_forward)
        return self.answer.clone()

    def update(self, error: torch.Tensor) -> None:
        """From the error (B, K) of the last ``forward``."""
        self.raise_if_told()
        self.error.copy_(error)
        self.launch("update", self.do_update)

    def step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """x (B, n_inputs), target (B, K) → the outputs before the update (B, K)."""
        self.raise_if_told()
        self.x.copy_(x)
        self.target.copy_(target)
        self.launch("step", self.do_step)
        return self.answer.clone()

    def do_forward(self) -> None:
        self.respond()
        self.tell()

    def do_update(self) -> None:
        self.refuse(self.error, -LARGEST, LARGEST)
        self.learn()
        self.tell()

    def do_step(self) -> None:
        self.refuse(self.target, 0, 1)
        self.respond()
        torch.sub(self.target, self.answer, out=self.error)
        self.learn()
        self.tell()

    def respond(self) -> None:
        """Fills ``answer``; with NaN, where the flag is up."""
        self.refuse(self.x, -LARGEST, LARGEST)
        self.x.masked_fill_(self.bad, 0)
        self.answer.copy_(self.net.respond(self.x))
        self.answer.masked_fill_(self.bad, float("nan"))

    def learn(self) -> None:
        """From ``error``; nothing, where the flag is up."""
        self.error.masked_fill_(self.bad, 0)
        self.net.learn(self.error, self.rate.masked_fill(self.bad, 0))

    def tell(self) -> None:
        """Sends the flag to the host, which does not wait for it."""
        self.told.copy_(self.bad, non_blocking=True)

    def refuse(self, array: torch.Tensor, low: float, high: float) -> None:
        """Raises the flag unless all numbers lie in [low, high]; NaN lies nowhere."""
        self.bad |= (array.clip(low, high) != array).any()

    def launch(self, name: str, function: Callable[[], None]) -> None:
        """The recorded ``function``; recorded at its first call, with α = 0, so that no weight moves."""
        if self.net.path == "layers":
            self.set_rate()
            function()
            return
        if name not in self.graphs:
            self.rate.zero_()
            self.graphs[name] = devices.record(function, self.x)
            self.alpha = None
        self.set_rate()
        self.graphs[name]()

    def set_rate(self) -> None:
        if self.alpha != self.net.alpha:
            self.alpha = self.net.alpha
            self.rate.fill_(self.alpha)

    def raise_if_told(self) -> None:
        """ValueError if the flag has come back; it is lowered, and the next calls count again."""
        if self.flag:
            torch.cuda.synchronize(self.x.device)
            self.bad.zero_()
            self.flag[...] = False
            wanted = "wanted finite numbers, and targets from 0 to 1. No weight has changed since"
            raise ValueError(f"x, target or error of an earlier call had other values; {wanted}")

    def settle(self) -> None:
        """Waits for all that was launched, and raises if any of it was refused."""
        torch.cuda.synchronize(self.x.device)
        self.raise_if_told()


def possible(space: arrays.Space) -> bool:
    """Whether arrays of this space can be worked on here: on a GPU, and one that PyTorch sees."""
    return space.is_gpu and (space.backend == "torch" or arrays.gpu_count("torch") > 0)
