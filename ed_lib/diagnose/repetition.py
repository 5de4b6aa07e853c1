"""What a step does again and again: a loop over one weight, and what it computes twice."""

from collections import Counter

from ed_lib.diagnose import verdict
from ed_lib.diagnose.operator_flops import BACKWARD
from ed_lib.diagnose.verdict import Measured
from ed_lib.diagnose.watching import Call

MANY = 8  # equal products with one weight are a loop


def of_computing_once(measured: Measured) -> tuple[float, str]:
    """(seconds, the line where most of them go): what was computed before in this step, from the
    same numbers; twice as much again may go into its backward pass.
    """
    seen = set()
    again: dict[str, float] = {}
    for call in measured.calls:
        if call.phase == "forward":
            more = call.own if call.value in seen else 0.0
            again[call.place] = again.get(call.place, 0.0) + more
            seen.add(call.value)
    place, _ = max(again.items(), key=lambda item: item[1], default=("", 0.0))
    passes = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
    for call in measured.calls:
        passes[call.phase] += call.own
    backward = passes["backward"] / passes["forward"] if passes["forward"] else 0.0
    return (1 + min(BACKWARD, backward)) * sum(again.values()), place


def of_one_call(measured: Measured) -> float:
    """A loop meets the same weight in each turn. In one call its products read the weight once, and
    its gradient is not added up turn by turn; what else the loop calls is done for all turns. Of
    the calls one of each kind is left.
    """
    passes = [call for call in measured.calls if call.phase != "optimizer"]
    turns = _turns(passes)
    if turns < MANY:
        return 0.0
    price = measured.price
    times = Counter((call.operator, call.shapes) for call in passes)
    members = [call for call in passes if times[call.operator, call.shapes] >= turns // 2]
    took = sum(call.own for call in members)
    least = sum(price.arithmetic(call) for call in members)
    share = 1 - len(times) / len(passes)
    outside = measured.parts[verdict.OUTSIDE]
    return took - least + share * (outside + measured.around_the_passes)


def _turns(passes: list[Call]) -> int:
    """How often the most repeated product meets one and the same weight."""
    products = Counter(
        (call.operator, call.shapes, address)
        for call in passes
        if call.flops
        for address in set(call.reads)
    )
    return max(products.values(), default=0)
