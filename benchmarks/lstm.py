"""LSTMs: every rung of NVIDIA's ladder beside ``nn.LSTM``, and how many steps' inputs are combined.

The first run of each version is compared with ``nn.LSTM`` in float64; what deviates by more than rounding
explains gets no row. All versions of one case take turns, on a GPU also as CUDA graphs. float32 is computed
as such, in cuDNN as well, which by default takes TF32. Operations are counted as NVIDIA did. Letters: T time
steps, B batch, H hidden, which is the number of inputs as well.
"""

import copy

import torch

from benchmarks import formats, harness
from benchmarks.formats import deviation
from benchmarks.harness import Size, Version
from ed_lib.lstm import LSTM, RUNGS, gpu, ladder

NN, LAST = "nn.LSTM", RUNGS[-1]
WHATS = *RUNGS, NN
TOLERANCE = 5e-5  # relative, as in `deviation`: less than TF32 needs


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

    def right(self, trained=False):
        """Output and last states, or output and all gradients, of an ``nn.LSTM`` in float64."""
        module, x, dy = copy.deepcopy(self.module).double(), self.x.double(), self.dy.double()
        return (training(module, x, dy) if trained else forward(module, x))()

    def version(self, what, **options):
        """The :class:`Version` of a pass forward by one of RUNGS, or NN. options: of ours."""
        module = self.module if what == NN else LSTM.from_torch(self.module, rung=what, **options)
        return self.checked(self.case(what) | options, forward(module, self.x))

    def case(self, what):
        sizes = {key: getattr(self.shape, key) for key in ("layers", "hidden", "batch", "steps")}
        return {"what": what} | sizes | {"format": "float32", "how": "eager"}

    def checked(self, case, call, *, trained=False, tolerance=TOLERANCE):
        """The version whose first run is compared with what is right."""
        error = deviation(call(), self.right(trained))
        return Version(case, call, least(self.shape, trained), error, tolerance)

    def graph(self, version):
        """The same as a CUDA graph; None, and said why, if it cannot be recorded."""
        kept, case = [], version.case | {"how": "CUDA graph"}
        try:
            replay = gpu.capture(lambda: kept.append(version.call()))
        except RuntimeError as error:
            print(f"{case}: left out, {str(error).splitlines()[0]}", flush=True)
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
        output, states = module(x)
        return output, *states

    return call


def training(module, x, dy):
    """A call of a module and its way back → output, and the gradients of x and of all parameters."""
    leaves = [x.detach().clone().requires_grad_(), *module.parameters()]

    def call():
        output, _ = module(leaves[0])
        return output.detach(), *torch.autograd.grad(output, leaves, dy)

    return call


def least(shape, trained=False):
    """(bytes, FLOPs) that a pass cannot do without. The way back multiplies twice as much, for the gradients
    of weights and of inputs; it reads weights and dy and writes their gradients and dx: as many bytes again.
    """
    return shape.least_bytes * (2 if trained else 1), shape.flops * (3 if trained else 1)


# few: steps whose inputs are combined on a CPU; rounds: of the ladder, by layers.
SIZE = Size(few=16, layers=(1, 4), rounds=(9, 5), steps=100, batch=64, hidden=512, seconds=0.1)
TINY = SIZE(few=5, rounds=(2, 1), steps=6, batch=3, hidden=16, seconds=0.001)
context, ceilings = formats.restored, formats.ceilings


def subject_of(size, device, layers, steps=None):
    return Subject(ladder.Shape(steps or size.steps, size.batch, size.hidden, size.hidden, layers), device)


def climb(size, device):
    """Every rung and nn.LSTM, beside what NVIDIA "published" for the rung, in GFLOP/s."""
    for layers, rounds in zip(size.layers, size.rounds, strict=True):
        subject = subject_of(size, device, layers)
        for row in measured(subject, [subject.version(what) for what in WHATS], size.seconds, rounds):
            of = 4 if row["what"] == LAST else 1  # layers
            yield row | ({"published": ladder.PUBLISHED.get(row["what"])} if layers == of else {})


def combine(size, device):
    """How many steps' input products are combined: 1, 2, 4, … and all of them."""
    steps = size.few if device == "cpu" else size.steps
    numbers = [2**n for n in range(steps.bit_length()) if 2**n < steps] + [steps]
    for what, layers in ((RUNGS[-2], 1), (LAST, size.layers[-1])):
        subject = subject_of(size, device, layers, steps)
        yield from measured(subject, [subject.version(what, combine=k) for k in numbers], size.seconds)


def measured(subject, versions, seconds, rounds=3):
    """Rows of versions of one subject in turns."""
    graphs = map(subject.graph, versions) if subject.device != "cpu" else ()
    versions = [*versions, *filter(None, graphs)]  # a graph that cannot be recorded is None
    return harness.measure(versions, subject.device, seconds, rounds=rounds)


TABLES = {"ladder": climb, "combine": combine}
