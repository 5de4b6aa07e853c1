"""LSTMs: every rung of NVIDIA's ladder beside ``nn.LSTM``, and how many steps' inputs are combined.

The first run of each version is compared with ``nn.LSTM`` in float64; what deviates by more than
rounding explains gets no row. All versions of one case take turns. float32 is computed as such, in
cuDNN as well, which by default takes TF32. Operations are counted as NVIDIA did. Letters: T time
steps, B batch, H hidden, which is the number of inputs as well.
"""

import copy
from functools import partial

import torch

from benchmarks.shared import formats
from benchmarks.shared.formats import deviation
from benchmarks.shared.harness import Size, Version, measure
from ed_lib.lstm import LSTM, RUNGS, ladder
from ed_lib.lstm.lstm_on_gpu import capture

NN = "nn.LSTM"
LAST = RUNGS[-1]
WHATS = *RUNGS, NN
# It is relative, as `deviation` has it, and less than TF32 needs.
TOLERANCE = 5e-5


class Subject:
    """An ``nn.LSTM`` in float32 and its input x, of a ``ladder.LSTMRun``."""

    def __init__(self, shape, device):
        draw = torch.Generator(device).manual_seed(0)
        self.shape = shape
        self.module = torch.nn.LSTM(shape.inputs, shape.hidden, shape.layers, device=device)
        for parameter in self.module.parameters():
            most = shape.hidden**-0.5
            torch.nn.init.uniform_(parameter, -most, most, generator=draw)
        sizes = shape.steps, shape.batch, shape.inputs
        # (T, B, H)
        self.x = torch.randn(sizes, generator=draw, device=device)

    def version(self, what, how="eager", **options):
        """The :class:`Version` of a pass forward by one of RUNGS, or NN. how: or as a "graph";
        options: of ours.
        """
        if what == NN:
            module = self.module
        else:
            module = LSTM.from_torch(self.module, rung=what, **options)
        sizes = {key: getattr(self.shape, key) for key in ("layers", "hidden", "batch", "steps")}
        case = {"what": what} | sizes | {"format": "float32", "how": how} | options
        call = partial(forward, module, self.x)
        error = deviation(call(), self.right())
        # Weights, inputs and outputs, at the least: nothing else leaves the chip.
        least = 4 * (self.shape.weights + self.x.numel() + call()[0].numel())
        call = capture(call) if how == "graph" else call
        return Version(case, call, (least, self.shape.flops), error, TOLERANCE)

    def right(self):
        """Output and last states of an ``nn.LSTM`` in float64."""
        return forward(copy.deepcopy(self.module).double(), self.x.double())


@torch.no_grad()
def forward(module, x):
    """A pass without gradients → output, h, c."""
    output, states = module(x)
    return output, *states


# few: steps whose inputs are combined on a CPU; rounds: of the ladder, by layers.
SIZE = Size(few=16, layers=(1, 4), rounds=(9, 5), steps=100, batch=64, hidden=512, seconds=0.1)
TINY = SIZE(few=5, rounds=(2, 1), steps=6, batch=3, hidden=16, seconds=0.001)
context = formats.restored
ceilings = formats.ceilings


def subject_of(size, device, layers, steps=None):
    steps = steps or size.steps
    return Subject(ladder.LSTMRun(steps, size.batch, size.hidden, size.hidden, layers), device)


def climb(size, device):
    """Every rung and nn.LSTM, on a GPU as graphs too, beside what NVIDIA "published", in
    GFLOP/s.
    """
    for layers, rounds in zip(size.layers, size.rounds, strict=True):
        subject = subject_of(size, device, layers)
        hows = ("eager", "graph") if device == "cuda" else ("eager",)
        versions = [subject.version(what, how) for how in hows for what in WHATS]
        for row in measure(versions, device, size.seconds, rounds=rounds):
            # NVIDIA published the last rung for four layers, the others for one.
            of_layers = 4 if row["what"] == LAST else 1
            if layers == of_layers:
                row["published"] = ladder.PUBLISHED.get(row["what"])
            yield row


def combine(size, device):
    """How many steps' input products are combined: 1, 2, 4, … and all of them."""
    steps = size.few if device == "cpu" else size.steps
    numbers = [2**n for n in range(steps.bit_length()) if 2**n < steps] + [steps]
    for what, layers in ((RUNGS[-2], 1), (LAST, size.layers[-1])):
        subject = subject_of(size, device, layers, steps)
        versions = [subject.version(what, combine=k) for k in numbers]
        yield from measure(versions, device, size.seconds)


TABLES = {"ladder": climb, "combine": combine}
TIMED = True
ON_GPU = tuple(TABLES)
