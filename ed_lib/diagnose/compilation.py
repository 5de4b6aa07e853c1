"""What ``torch.compile`` has made of a step: graphs, the places where it broke off, and why it
compiled again.
"""

import sys
from dataclasses import dataclass

LONGEST = 100  # letters of a reason that are shown


@dataclass(frozen=True)
class Compilation:
    """``graphs`` compiled in this process, the reasons of ``breaks`` between them, and those of
    ``recompilations``, each with how often it came.
    """

    graphs: int
    breaks: dict[str, int]
    recompilations: dict[str, int]


def compilation() -> Compilation | None:
    """What the compiler has counted in this process so far; None where it was never called."""
    # Asking would import it, which takes seconds.
    if "torch._dynamo.utils" not in sys.modules:
        return None
    from torch._dynamo import utils

    graphs = utils.counters["stats"]["unique_graphs"]
    if not graphs:
        return None
    breaks = {_first_line(why): n for why, n in utils.counters["graph_break"].items()}
    again: dict[str, int] = {}
    for metrics in utils.get_compilation_metrics():
        if metrics.recompile_reason:
            # "0/0: tensor 'x' size mismatch …", where 0/0 is the graph's number
            why = _first_line(metrics.recompile_reason.partition(": ")[2])
            again[why] = again.get(why, 0) + 1
    return Compilation(graphs, breaks, again)


def _first_line(text):
    return text.strip().partition("\n")[0][:LONGEST]
