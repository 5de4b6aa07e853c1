"""The worked cluster of "Many devices": 64 H100 in eight servers train a model of 7 billion
parameters, split in every way that the part has. One table grows from page to page.

The model is Llama-2-7B's, whose batch was four million tokens (H. Touvron et al., 2023): here 1,024
sequences of 4,096 tokens, 16 on each of 64 devices, one to a micro-batch. Bytes and seconds are
:mod:`.step_model`'s: in 16 bits, with Adam, 16 bytes a parameter (one matrix of the vocabulary is
counted); products run at the share of their rate that training reached in published runs.
"""

import math
from dataclasses import replace

import pandas as pd

from ed_lib import check
from ed_lib.parallel.hardware import H100, REACHED, Machine
from ed_lib.parallel.links import Link
from ed_lib.parallel.step_model import device_memory, step_seconds
from ed_lib.parallel.workload import Layout, Model

CLUSTER = H100.slower(REACHED)
MODEL = Model(32, 4096, 32, 4096, 32_000, 11_008, kv_heads=32, gated=True, causal=True)
BATCH = 1024  # sequences in a step
COMPUTING = "products", "memory", "vocabulary", "optimizer"
MESSAGES = "tensor", "context", "stages", "copies"


def _split(devices=64, **options):
    return Layout(devices, **{"batch": BATCH, "sequence": True, "overlap": True} | options)


# Neighbours share a server: those that split a layer, or else those that split the chain of layers.
# Eight that split a layer take eight sequences at a time, so that a device has as many tokens.
SPLITS: dict[str, Layout] = {
    "one device": _split(1),
    "one copy each": _split(),
    "optimizer shared": _split(stage=1),
    "gradients too": _split(stage=2),
    "weights too": _split(stage=3),
    "tensor, 8 in a server": _split(tensor=8, micro=8),
    "pipeline, 8 in a server": _split(pipeline=8),
    "tensor 8 × pipeline 8": _split(tensor=8, pipeline=8, micro=8),
    "tensor 8, weights too": _split(tensor=8, stage=3, micro=8),
    # The fastest of the splits by powers of two that a test tries; with more tokens, the same one.
    "16,384 devices": _split(16_384, tensor=8, pipeline=8, context=2, chunks=4, stage=1),
    "16,384 devices, 16M tokens": _split(
        16_384, tensor=8, pipeline=8, context=2, chunks=4, stage=1, batch=4 * BATCH
    ),
}


def balance(link: Link) -> float:
    """βR of a link: the tokens on each device from which one sum of 16-bit gradients over many
    devices, all on such links, takes no longer than the products of a backward pass.
    """
    return link.beta * CLUSTER.rate


def row(layout: Layout) -> dict[str, float]:
    """The numbers of :func:`table` for a split, not rounded. NaN where there are no sums between
    copies.
    """
    # What nothing hides, and what the messages would take at a second for each byte.
    alone = replace(layout, overlap=False)
    seconds = step_seconds(MODEL, CLUSTER, alone)
    sent = step_seconds(MODEL, _on_links(Link(0, 1), Link(0, 1)), alone)
    return {
        "GB a device": sum(device_memory(MODEL, layout).values()) / 1e9,
        "GB sent a device and step": sum(sent[name] for name in MESSAGES) / 1e9,
        "ms of computing": 1e3 * sum(seconds[name] for name in COMPUTING),
        "ms of messages": 1e3 * sum(seconds[name] for name in MESSAGES),
        "ms a step": 1e3 * sum(step_seconds(MODEL, CLUSTER, layout).values()),
        "tokens a device from which it pays": _tokens(layout),
    }


def table(*names: str) -> pd.DataFrame:
    """A row for each way to split the work: *GB a device* (the fullest); *GB sent a device and
    step*; *ms of computing*, and *ms of messages* if nothing hides them; *ms a step*, with what
    hides and with what waits; *tokens a device from which it pays*: from so many on sums between
    copies take no longer than a backward pass's products, by their bytes alone (of stages 2 and 3,
    in each micro-batch).

    names: of SPLITS, otherwise ValueError; all, if there are none. A page shows the table by
    ``chapter.table(table(...).to_dict("records"), caption)``.
    """
    rows = []
    for name in names or SPLITS:
        check.choice("name", name, SPLITS)
        found: dict[str, float | str] = {"split": name}
        for what, value in row(SPLITS[name]).items():
            if math.isnan(value):
                found[what] = "–"
            else:
                found[what] = round(value, 1 if what.startswith("GB") else None)
        rows.append(found)
    return pd.DataFrame(rows)


def _on_links(inside: Link, between: Link) -> Machine:
    return replace(CLUSTER, inside=inside, between=between)


def _tokens(layout):
    """Of the batch's tokens, those of a device at which a sum takes as long as the products of a
    backward pass.
    """
    if layout.data * layout.context == 1:
        return math.nan
    by_bytes = _on_links(Link(0, CLUSTER.inside.beta), Link(0, CLUSTER.between.beta))
    summing = step_seconds(MODEL, by_bytes, replace(layout, stage=0, overlap=False))["copies"]
    # Backward, a weight takes four FLOPs a token, and a copy's weights are on so many devices.
    return summing * CLUSTER.rate / (4 * MODEL.parameters)
