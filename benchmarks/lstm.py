"""LSTMs: every rung of NVIDIA's ladder beside ``nn.LSTM``, and how many steps' inputs are combined.

The first run of each version is compared with ``nn.LSTM`` in float64; what deviates by more than its format
explains gets no row. All versions of one case take turns, on a GPU also as CUDA graphs. float32 is computed
as such, in cuDNN as well, which by default takes TF32; ``tf32`` is named. Operations are counted as NVIDIA
did: ``ladder.Shape``. Letters: T time steps, B batch, H hidden, which is the number of inputs as well.
"""

import copy
import dataclasses
import functools
from dataclasses import dataclass

import torch

from benchmarks import formats, harness
from benchmarks.formats import set_float32
from benchmarks.harness import Version
from ed_lib import graphs
from ed_lib.lstm import BEYOND, LSTM, RUNGS, counters, ladder

NN, LAST = "nn.LSTM", RUNGS[-1]
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
        """The same as a CUDA graph; None, and said why, if it cannot be recorded."""
        kept, case = [], version.case | {"how": "CUDA graph"}
        try:
            replay = graphs.capture(lambda: kept.append(version.call()), self.x)
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


def deviation(found, right):
    """The largest deviation of a tensor's numbers relative to its largest number, over all tensors."""
    pairs = zip(found, right, strict=True)
    return max(float((mine.double() - other).abs().max() / other.abs().max()) for mine, other in pairs)


def least(shape, trained=False):
    """(bytes, FLOPs) that a pass cannot do without. The way back multiplies twice as much, for the gradients
    of weights and of inputs; it reads weights and dy and writes their gradients and dx: as many bytes again.
    """
    return shape.least_bytes * (2 if trained else 1), shape.flops * (3 if trained else 1)


@dataclass(frozen=True)
class Size:
    """``few``: steps whose inputs are combined on a CPU; ``rounds``: of the ladder, by ``layers``."""

    few: int = 16
    layers: tuple = (1, 4)
    rounds: tuple = (9, 5)
    steps: int = 100
    batch: int = 64
    hidden: int = 512
    seconds: float = 0.1

    def subject(self, device, layers, steps=None):
        shape = ladder.Shape(steps or self.steps, self.batch, self.hidden, self.hidden, layers)
        return Subject(shape, device)


SIZE, TINY = Size(), Size(few=5, rounds=(2, 1), steps=6, batch=3, hidden=16, seconds=0.001)
context, ceilings = formats.restored, formats.ceilings


def climb(size, device):
    """Every rung, the batched wavefront and nn.LSTM in float32, beside what NVIDIA published for the rung;
    the last rung and nn.LSTM in TF32 too, where a GPU has it.
    """
    for layers, rounds in zip(size.layers, size.rounds, strict=True):
        subject = size.subject(device, layers)
        versions = [subject.version(what) for what in (*RUNGS, *BEYOND, NN)]
        if "tf32" in [form.name for form in formats.formats(device)]:
            versions += [subject.version(what, "tf32") for what in (LAST, NN)]
        for row in measured(subject, versions, size.seconds, rounds, launches=True):
            of = 4 if row["what"] == LAST else 1  # layers
            if row["what"] in RUNGS and (layers, row["format"]) == (of, "float32"):
                row["published"] = ladder.PUBLISHED[row["what"]]
            yield row


def combine(size, device):
    """How many steps' input products are combined: 1, 2, 4, … and all of them."""
    steps = size.few if device == "cpu" else size.steps
    numbers = [2**n for n in range(steps.bit_length()) if 2**n < steps] + [steps]
    for what, layers in ((RUNGS[-2], 1), (LAST, size.layers[-1])):
        subject = size.subject(device, layers, steps)
        yield from measured(subject, [subject.version(what, combine=k) for k in numbers], size.seconds)


def measured(subject, versions, seconds, rounds=3, launches=False):
    """Rows of versions of one subject in turns, with "GFLOP/s" and "against …": how many times as fast as the
    baseline, nn.LSTM, the rung before, or float32 in the same turns, if all else is equal.
    """
    graphs = map(subject.graph, versions) if subject.device != "cpu" else ()
    versions = [*versions, *filter(None, graphs)]  # a graph that cannot be recorded is None
    rows = harness.measure(versions, subject.device, seconds, rounds=rounds, launches=launches)
    return compared(rows)


def compared(rows):
    """The rows with what stands beside them."""
    seconds = {(row["what"], row["format"], row["how"], row.get("combine")): row["seconds"] for row in rows}
    for row in rows:
        what, format, *how = row["what"], row["format"], row["how"], row.get("combine")
        before = RUNGS[RUNGS.index(what) - 1] if what in RUNGS[1:] else None
        others = {"baseline": (RUNGS[0], format), NN: (NN, format), "before": (before, format)}
        others |= {"float32": (what, "float32")} if format == "tf32" else {}
        row["GFLOP/s"] = row["floor_flops"] / row["seconds"] / 1e9
        for name, other in others.items():
            if (*other, *how) in seconds:
                row[f"against {name}"] = seconds[*other, *how] / row["seconds"]
    return rows


TABLES = {"ladder": climb, "combine": combine}
