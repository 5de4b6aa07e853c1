"""A machine with round numbers, and measurements of steps that nobody has run."""

import itertools

from ed_lib.diagnose import machine_costs, operators, verdict
from ed_lib.diagnose.profiled import Profiled
from ed_lib.diagnose.verdict import Held, Measured
from ed_lib.diagnose.watching import Call, Touch
from ed_lib.timing import Timing

MICRO = 1e-6
PAGES = machine_costs.PageCosts(given=1 * MICRO, taken_back=0.5 * MICRO)
COSTS = machine_costs.CallCosts(plain=1 * MICRO, differentiated=2 * MICRO, watched=3 * MICRO)
BANDWIDTH = 1e9  # bytes/s of memory
CACHE = 1000  # bytes
CACHED = 4e9  # bytes/s of what moved less than CACHE bytes ago
RATES = {"float32": 1e9, "bfloat16": 4e9, "float16": 4e9, "float64": 5e8}  # FLOP/s


class Prices(operators.Prices):
    """The prices of a machine with the numbers above."""

    @property
    def costs(self):
        return COSTS

    @property
    def pages(self):
        return PAGES if self.device == "cpu" else super().pages

    def rate(self, dtype):
        return RATES[dtype if dtype in RATES else "float32"]

    @property
    def _memory(self):
        return machine_costs.Memory(((CACHE, CACHED),), BANDWIDTH)

    def memory(self, call):
        return self._memory.seconds(call)

    @property
    def bandwidth(self):
        return BANDWIDTH

    def speed(self, bytes):
        return self._memory.speed(bytes)


def prices(device="cpu", threads=1):
    return Prices(device, threads)


NUMBERS = itertools.count()


def call(operator="mul", bytes=0, flops=0, seconds=0.0, **change):
    """A call that takes ``seconds`` for its work, whose bytes come from memory."""
    values = {
        "phase": "forward",
        "shapes": 3 * ((4, 4),),
        "dtype": "float32",
        "outside": 0.0,
        "place": "train.py:1",
        "device": "cpu",
        "reads": (),
        "value": next(NUMBERS),
        "touches": [Touch(bytes, None)] if bytes else [],
        "own": seconds,
    }
    taken = seconds + COSTS.watched
    return Call(operator=operator, flops=flops, seconds=taken, **values | change)


def measured(
    seconds, calls=(), *, waited=0.0, optimizing=0.0, profile=None, device="cpu", threads=1, **more
):
    """What was measured of a step of so many seconds, divided into its parts."""
    price = prices(device, threads)
    found = Measured(
        timing=Timing(seconds, seconds, seconds, 4),
        waited=waited,
        optimizing=optimizing,
        calls=list(calls),
        operators=operators.grouped(calls, price),
        price=price,
        profile=profile or Profiled(),
        held=more.pop("held", Held()),
        steps=10,
        **more,
    )
    found.parts = verdict.divide(found)
    return found
