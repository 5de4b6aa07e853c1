"""What ``lstm`` and ``lstm_cpu`` time: LSTMs with the same weights, and what is right in float64.

Letters: T time steps, B batch, H hidden, which is the number of inputs as well, L layers.
"""

import copy
import dataclasses
import functools

import torch

from benchmarks.formats import captured, set_float32
from benchmarks.harness import Version
from ed_lib.lstm import BEYOND, LSTM, RUNGS, counters

NN = "nn.LSTM"
TOLERANCE = {"float32": 5e-5, "tf32": 1e-2}  # relative, as in `deviation`


class Subject:
    """An ``nn.LSTM`` in float32, its input x and the gradient dy of its output, of a ``ladder.Shape``."""

    def __init__(self, shape, device):
        draw = torch.Generator(device).manual_seed(0)
        self.shape, self.device = shape, device
        self.module = torch.nn.LSTM(shape.inputs, shape.hidden, shape.layers, device=device)
        for parameter in self.module.parameters():
            torch.nn.init.uniform_(parameter, -(shape.hidden**-0.5), shape.hidden**-0.5, generator=draw)
        self.x, self.dy = (
            torch.randn(shape.steps, shape.batch, size, generator=draw, device=device)
            for size in (shape.inputs, shape.hidden)  # (T, B, H) each
        )

    @functools.cached_property
    def right(self):
        """Output and last states of an ``nn.LSTM`` in float64."""
        return forward(copy.deepcopy(self.module).double(), self.x.double())()

    @functools.cached_property
    def right_gradients(self):
        """Output and all gradients, likewise."""
        return training(copy.deepcopy(self.module).double(), self.x.double(), self.dy.double())()

    def version(self, what, format="float32", **options):
        """The :class:`Version` of a pass forward by one of RUNGS or BEYOND, or NN. options: of ours."""
        ours = what in RUNGS + BEYOND
        call = forward(LSTM.from_torch(self.module, rung=what, **options) if ours else self.module, self.x)

        def exactly():
            set_float32("tf32" if format == "tf32" else "ieee")
            return call()

        return self.checked(self.case(what, format) | options, exactly, counted=ours)

    def case(self, what, format="float32"):
        sizes = {key: getattr(self.shape, key) for key in ("layers", "hidden", "batch", "steps")}
        return {"what": what} | sizes | {"format": format, "how": "eager"}

    def checked(self, case, call, *, counted=False, trained=False, tolerance=None, results=None):
        """The version whose first run is compared with what is right and, if ``counted``, watched."""
        found, results = [], results or {}
        if counted:
            results = dataclasses.asdict(counters.count(lambda: found.extend(call())))
        error = deviation(found or call(), self.right_gradients if trained else self.right)
        tolerance = tolerance or TOLERANCE[case["format"]]
        return Version(case, call, least(self.shape, trained), error, tolerance, results)

    def graph(self, version):
        """The same as a CUDA graph; None if it cannot be recorded."""
        kept, case = [], version.case | {"how": "CUDA graph"}
        replay = captured(case, lambda: kept.append(version.call()), self.x)
        if replay is None:
            return None
        del kept[:-1]  # what the first run answered, before the recording

        def call():
            replay()
            return kept[-1]

        return self.checked(case, call)


def forward(module, x):
    """A call of a module without gradients → output, h, c."""

    @torch.no_grad()
    def call():
        output, (h, c) = module(x)
        return output, h, c

    return call


def training(module, x, dy):
    """A call of a module and its way back → output, and the gradients of x and of all parameters."""
    leaves = [x.detach().clone().requires_grad_(), *module.parameters()]

    def call():
        output, _ = module(leaves[0])
        return output.detach(), *torch.autograd.grad(output, leaves, dy)

    return call


def deviation(found, right):
    """The largest deviation of a tensor's numbers relative to its largest number, over all tensors."""
    pairs = zip(found, right, strict=True)
    return max(float((mine.double() - other).abs().max() / other.abs().max()) for mine, other in pairs)


def least(shape, trained=False):
    """(bytes, FLOPs) that a pass cannot do without: those of a ``ladder.Shape``.

    The way back multiplies twice as much, for the gradients of weights and of inputs; it reads weights and dy
    and writes their gradients and dx, which are the bytes of the way forward once more.
    """
    return shape.least_bytes * (2 if trained else 1), shape.flops * (3 if trained else 1)
