"""One layer of an LSTM on a CPU, by the rungs of ``ed_lib.lstm.lstm_on_cpu`` and by what PyTorch
has: by hidden units for one sequence, and by batch.

The first run of each version is compared with ``nn.LSTM`` in float64; what deviates by more than
its format explains gets no row. All versions of one case take turns, at equal threads. A format is
that of the recurrent product; "int8" stands where the processor multiplies bytes, "bfloat16" where
it has instructions for it. Letters: T time steps, B batch, H hidden, which is the number of inputs
as well.
"""

import contextlib
import subprocess
import sys
from functools import partial

import numba
import torch

from benchmarks.lstm import Subject, forward
from benchmarks.shared import formats
from benchmarks.shared.formats import deviation
from benchmarks.shared.harness import Size, Version, measure, one_thread
from ed_lib import roofline
from ed_lib.lstm import LSTM, ladder, lstm_in_pytorch, lstm_on_cpu
from ed_lib.lstm.lstm_on_cpu import PHASES, Packed

NN = "nn.LSTM"
QUANTIZED = "quantize_dynamic"
# What each explains of a deviation; quantize_dynamic rounds x as well, and to fewer levels.
TOLERANCE = formats.TOLERANCE | {"int8": 3e-2, QUANTIZED: 0.15}
WHOLE, CALL = "whole", "the call"
# At the least, exponentials as the kernel computes them: five for each hidden number.
CELL_FLOPS = 100
LINE = 64  # bytes, in which a thread's counter lies

# hidden: at batch 1; batches: at the second of them; threads: those that the machine has.
SIZE = Size(
    hidden=(64, 256, 512), batches=(4, 16, 64), steps=100, threads=(1, 2), seconds=1.0, rounds=9
)
TINY = SIZE(hidden=(16, 20), batches=(3,), steps=6, seconds=0.001, rounds=1)
context = formats.restored


def ceilings(device, name):
    """A product of bytes has no ceiling of its own here: its floor counts no operations."""
    return formats.ceilings(device, "bfloat16" if name == "bfloat16" else "float32")


def cases(size):
    """(H, B, threads) of each: some hidden sizes for one sequence, one of them for more."""
    middle = size.hidden[1]
    sizes = [(n, 1) for n in size.hidden] + [(middle, n) for n in size.batches]
    return [(*each, n) for each in sizes for n in threads_of(size)]


def threads_of(size):
    """Those that Numba has: with more, they would wait for each other in turns."""
    return [n for n in size.threads if n <= numba.get_num_threads()]


def subject_of(size, hidden, batch):
    return Subject(ladder.LSTMRun(size.steps, batch, hidden, hidden), "cpu")


def modules(subject, threads):
    """{(what, format): a module}, the rungs in order and then their rivals."""
    module, x = subject.module, subject.x
    rows = {
        ("steps from Python", "float32"): LSTM.from_torch(
            module, rung="combined_inputs", combine=len(x)
        ),
        # It packs the weights in each call.
        ("one call", "float32"): lambda x: Packed(module, threads=threads)(x),
        ("packed once", "float32"): Packed(module, threads=threads),
    }
    if lstm_on_cpu.VNNI:
        rows["packed once", "int8"] = Packed(module, threads=threads, bits=8)
    rows[NN, "float32"] = module
    if torch.backends.mkldnn.is_available():
        rows[f"{NN}, packed once", "float32"] = lstm_in_pytorch.packed_once(module, x)
    rows[QUANTIZED, "int8"] = lstm_in_pytorch.in_eight_bits(module)
    if lstm_in_pytorch.HAS_BFLOAT16:
        rows[NN, "bfloat16"] = lstm_in_pytorch.in_bfloat16(module)
    return rows


def cost(subject, what, format):
    """(bytes, FLOPs) at the least: inputs and outputs, and each weight once; of the products what
    is not of bytes.
    """
    products = subject.shape.flops
    both = 2 * 4 * subject.x.numel()
    if what == QUANTIZED:
        return subject.shape.weights + both, 0
    if format == "int8":
        # Half of the weights are W_ih's, in float32.
        return (1 + 4) / 2 * subject.shape.weights + both, products / 2
    return (2 if format == "bfloat16" else 4) * subject.shape.weights + both, products


def floor(cost, format, threads):
    """Seconds at the least with so many threads."""
    # What a processor cannot add in few bits it adds in float32.
    names = {"float32", "bfloat16" if format == "bfloat16" else "float32"}
    return min(roofline.ceilings("cpu", name, threads=threads).floor(*cost) for name in names)


def versions(subject, threads):
    right = subject.right()
    for (what, format), module in modules(subject, threads).items():
        call = partial(forward, module, subject.x)
        error = deviation(call(), right)
        sizes = {key: getattr(subject.shape, key) for key in ("hidden", "batch", "steps")}
        case = {"what": what} | sizes | {"format": format, "threads": threads}
        least = cost(subject, what, format)
        known = {"floor": floor(least, format, threads)}
        tolerance = TOLERANCE[QUANTIZED if what == QUANTIZED else format]
        yield Version(case, call, least, error, tolerance, known)


def cpu(size, device):
    """Every rung and every rival."""
    for hidden, batch, threads in cases(size):
        with one_thread(threads=threads):
            all_versions = list(versions(subject_of(size, hidden, batch), threads))
            yield from measure(all_versions, device, size.seconds, rounds=size.rounds)


def budget(size, device):
    """The phases of a pass, each alone, beside the whole pass and a call that does nothing."""
    subject = subject_of(size, size.hidden[1], 1)
    bits_of = {"float32": 32} | ({"int8": 8} if lstm_on_cpu.VNNI else {})
    for threads in threads_of(size):
        with one_thread(threads=threads):
            of_all = [
                phase(subject, what, format, bits, threads)
                for format, bits in bits_of.items()
                for what in (WHOLE, *PHASES, CALL)
            ]
            yield from measure(of_all, device, size.seconds, rounds=size.rounds)


def phase(subject, what, format, bits, threads):
    """The :class:`Version` of one phase of a pass, of all of them, or of none."""
    packed = Packed(subject.module, threads=threads, bits=bits)
    packed.phases = {WHOLE: packed.phases, CALL: 0}.get(what, PHASES.get(what, 0))
    shape = subject.shape
    case = {"what": what, "hidden": shape.hidden, "batch": 1, "steps": shape.steps}
    case |= {"format": format, "threads": threads}
    product = shape.flops / 2
    least = {
        WHOLE: cost(subject, "packed once", format),
        "input product": (0, product),
        "recurrent product": (0, product) if bits == 32 else (shape.weights / 2, 0),
        "cell": (0, CELL_FLOPS * shape.steps * shape.hidden),
        "waiting": (LINE * threads * shape.steps, 0),
        CALL: (4 * shape.hidden, 0),  # the state to start from
    }[what]
    known = {"floor": floor(least, format, threads)}
    return Version(case, partial(forward, packed, subject.x), least, results=known)


def crowded(size, device):
    """One sequence, while another program wants a core: who waits for a thread waits for that."""
    subject = subject_of(size, size.hidden[1], 1)
    for threads in threads_of(size):
        with one_thread(threads=threads), another_program():
            few = [
                version
                for version in versions(subject, threads)
                if version.case["what"] in ("packed once", NN)
            ]
            yield from measure(few, device, size.seconds, rounds=size.rounds)


@contextlib.contextmanager
def another_program():
    """A process that computes without an end, until this does."""
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


TABLES = {"cpu": cpu, "budget": budget, "crowded": crowded}
TIMED = True
