"""A step's roofline: how near its operators come to what the machine can do."""

from typing import TYPE_CHECKING

import numpy as np

from ed_lib import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ed_lib.diagnose.report import Diagnosis

LARGEST = 900  # points² of a circle that is the whole step
NAMED = 4  # operators whose name is written
LEAST = 0.005  # of the step's time: less is not drawn
LETTERS = 22  # of a name
GIGA = 1e9


def roofline(report: "Diagnosis") -> "Figure":
    """Each operator that multiplies a circle, at its FLOPs a byte and the FLOP/s that it reached;
    what moves bytes alone stands on the left edge, at the FLOP/s of one FLOP a number.
    """
    import matplotlib.pyplot as plt

    price = report.measured.price
    shown = [one for one in report.operators if one.seconds > LEAST * report.seconds and one.flops]
    rate = price.rate("float32")
    figure, axes = plt.subplots()
    ridge = rate / price.bandwidth
    reach = [one.flops / one.bytes for one in shown] + [ridge]
    x = np.geomspace(min(reach) / 3, max(reach) * 3)
    axes.loglog(x, np.minimum(x * price.bandwidth, rate) / GIGA, color=figures.GREY)
    for nth, one in enumerate(shown):
        colour = figures.ORANGE if one.above > one.floor else figures.BLUE
        at = (one.flops / one.bytes, one.flops / one.seconds / GIGA)
        size = LARGEST * one.seconds / report.seconds
        axes.scatter(*at, s=size, color=colour, alpha=0.7)
        if nth < NAMED:
            name = f"{one.name[:LETTERS]}, {one.seconds / report.seconds:.0%}"
            axes.annotate(name, at, xytext=(8, -12), textcoords="offset points", fontsize=9)
    axes.set_xlabel("FLOPs for each byte that is moved")
    axes.set_ylabel("GFLOP/s")
    axes.set_title("grey: the machine's roof; orange: more than twice the floor", fontsize=9)
    return figure
