"""What ``benchmarks.lstm`` times: LSTMs of every kind with the same weights, and what is right in float64.

Letters: T time steps, B batch, H hidden, which is the number of inputs as well, L layers.
"""

import copy
import dataclasses
import functools

import torch

from benchmarks.formats import set_float32
from benchmarks.old_harness import Version, recorded
from ed_lib.lstm import BEYOND, LSTM, RUNGS, counters, ladder

OURS = (*RUNGS, *BEYOND)
NN = "nn.LSTM"
IN_A_ROW, AUTOCAST = "one-layer nn.LSTMs in a row", "nn.LSTM, autocast"
DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
TOLERANCE = {"float32": 5e-5, "tf32": 1e-2, "bfloat16": 5e-2, "float16": 1e-2}  # relative, as in `deviation`


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

    def version(self, table, what, format="float32", combine=None):
        """The :class:`Version` of one case. what: one of OURS, NN, AUTOCAST or IN_A_ROW."""
        shape, dtype = self.shape, DTYPES[format]
        case = {"table": table, "what": what, "layers": shape.layers, "hidden": shape.hidden}
        case |= {"batch": shape.batch, "steps": shape.steps, "format": format, "how": "eager"}
        case |= {} if combine is None else {"combine": combine}
        low, float32 = torch.float32 if what == AUTOCAST else dtype, "tf32" if format == "tf32" else "ieee"
        module, x = copy.deepcopy(self.module).to(low), self.x.to(low)
        if what in OURS:
            module = LSTM.from_torch(module, rung=what, **({} if combine is None else {"combine": combine}))
        elif what == IN_A_ROW:
            module = InARow(module)
        else:
            module.flatten_parameters()
        call = training(module, x, self.dy.to(low)) if table == "training" else forward(module, x)
        if what == AUTOCAST:
            call = torch.autocast(torch.device(self.device).type, dtype)(call)
        return self.checked(case, exactly(call, float32), what in OURS)

    def checked(self, case, call, counted=False):
        """The version whose first run is compared with what is right and, if ``counted``, watched."""
        found, counts = [], {}
        if counted:
            counts = dataclasses.asdict(counters.count(lambda: found.extend(call())))
        else:
            found = call()
        error = deviation(found, self.right_gradients if case["table"] == "training" else self.right)
        results = {name: [count] for name, count in counts.items()}
        return Version(case, call, least(case), error, TOLERANCE[case["format"]], results)

    def graph(self, version):
        """The same as a CUDA graph; None if it cannot be recorded."""
        kept, case = [], version.case | {"how": "CUDA graph"}
        replay = recorded(case, lambda: kept.append(version.call()), self.x)
        if replay is None:
            return None
        del kept[:-1]  # what the first run answered, before the recording

        def call():
            replay()
            return kept[-1]

        return self.checked(case, call)


class InARow(torch.nn.Module):
    """The layers of an ``nn.LSTM`` as modules of one layer each."""

    def __init__(self, module):
        super().__init__()
        self.layers = torch.nn.ModuleList()
        for weights in module.all_weights:  # (4H, I), (4H, H), (4H,), (4H,)
            like = {"device": weights[0].device, "dtype": weights[0].dtype}
            self.layers.append(torch.nn.LSTM(weights[0].shape[1], module.hidden_size, **like))
            with torch.no_grad():
                for mine, weight in zip(self.layers[-1].all_weights[0], weights, strict=True):
                    mine.copy_(weight)

    def forward(self, x):
        states = []
        for layer in self.layers:
            x, state = layer(x)
            states.append(state)
        h, c = map(torch.cat, zip(*states, strict=True))  # (L, B, H) each
        return x, (h, c)


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


def exactly(call, how):
    """A call with float32 multiplied like this."""

    def exact():
        set_float32(how)
        return call()

    return exact


def deviation(found, right):
    """The largest deviation of a tensor's numbers relative to its largest number, over all tensors."""
    pairs = zip(found, right, strict=True)
    return max(float((mine.double() - other).abs().max() / other.abs().max()) for mine, other in pairs)


def least(case):
    """(bytes, FLOPs) that a case cannot do without; those of ``ladder.Shape`` on a way forward.

    The way back multiplies twice as much, for the gradients of weights and of inputs; it reads weights and dy
    and writes their gradients and dx, which are the bytes of the way forward once more.
    """
    sizes = {key: case[key] for key in ("steps", "batch", "hidden", "layers")}
    shape = ladder.Shape(inputs=case["hidden"], itemsize=DTYPES[case["format"]].itemsize, **sizes)
    ways = (2, 3) if case["table"] == "training" else (1, 1)
    return ways[0] * shape.least_bytes, ways[1] * shape.flops
