"""The picture of the two types of cell."""

from typing import Any

from ed_lib.figures import EXCITATORY, INHIBITORY


def cell_pair() -> Any:
    """A figure: two types of cell, the signs of the connections between them, the error at each weight."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(5.2, 3.1))
    ax.set(xlim=(-0.5, 3.5), ylim=(-0.6, 2.0), aspect="equal")
    ax.axis("off")
    centre: dict[str, Any] = {"ha": "center", "va": "center"}
    colours, heights = (EXCITATORY, INHIBITORY), (1.6, 0.0)
    places = {  # (receiver, sender): where the sign of the connection and the weight's name go
        (0, 0): ((0.98, 1.74), (1.6, 1.75)),
        (1, 0): ((0.98, 1.34), (2.3, 0.6)),
        (0, 1): ((0.98, 0.27), (2.3, 0.99)),
        (1, 1): ((0.98, -0.13), (1.6, -0.16)),
    }
    for (p, q), (sign, name) in places.items():
        style = {"arrowstyle": "-|>", "mutation_scale": 13, "lw": 2, "color": colours[q]}
        style |= {"ls": "-" if p == q else (0, (4, 2)), "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", (2.65, heights[p]), (0.35, heights[q]), arrowprops=style)
        ax.text(*sign, "+" if p == q else "−", **centre, fontsize=14)
        ax.text(*name, rf"$W[{p},{q}]\leftarrow d$", **centre, fontsize=9.5)
    for x, side in ((0, "x"), (3, "y")):
        for kind, label in enumerate(("excitatory", "inhibitory")):
            ax.add_patch(plt.Circle((x, heights[kind]), 0.32, fc="none", ec=colours[kind], lw=2.2))
            ax.text(x, heights[kind], f"${side}_{kind}$", **centre, fontsize=12)
            ax.text(x, heights[kind] - 0.46, label, **centre, fontsize=9)
    return figure
