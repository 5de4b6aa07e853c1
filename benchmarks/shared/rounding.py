"""A model's weights rounded to few bits, after training, in every way of the book.

Letters: I inputs of a layer, O outputs, N rows that it is given.
"""

import copy
import time

import torch
from torch import nn

from benchmarks.shared.harness import summary
from ed_lib.precision import weight_only

HOWS = "nearest", "GPTQ", "AWQ"


def in_few_bits(size, exact, seen):
    """For each way of rounding: a row with its seconds and bytes, {name: the numbers that a weight
    becomes}.

    A group of 0 is a row's whole, of −1 the whole matrix. ``exact`` {name: (O, I)}, ``seen`` its
    inputs.
    """
    ways = [("float32", 32, 0)]
    for bits in size.bits:
        # With eight bits there is nothing that GPTQ and AWQ could mend.
        hows = size.hows[:1] if bits == 8 else size.hows
        ways += [("nearest", bits, -1), ("nearest", bits, 0)]
        ways += [(how, bits, group) for group in size.groups for how in hows]
    for way in ways:
        start = time.perf_counter()
        found = {name: rounded(weight, seen[name], *way) for name, weight in exact.items()}
        seconds = time.perf_counter() - start
        row = dict(zip(("how", "bits", "group"), way, strict=True)) | summary([seconds])
        row["bytes"] = sum(bytes for _, bytes in found.values())
        yield row, {name: weight for name, (weight, _) in found.items()}


def inputs(net, run):
    """What each Linear layer of a transformer's blocks is given when it is run: {name: (N, I)}."""
    seen = {}
    watched = copy.deepcopy(net)
    for name, layer in watched.named_modules():
        if isinstance(layer, nn.Linear) and "." in name:
            rows = seen[name] = []
            layer.register_forward_pre_hook(
                lambda layer, x, rows=rows: rows.append(x[0].flatten(0, -2))
            )
    with torch.no_grad():
        run(watched)
    return {name: torch.cat(rows) for name, rows in seen.items()}


def rounded(weight, x, how, bits, group):
    """(the numbers that a weight (O, I), with inputs x (N, I), is rounded to; the bytes of their
    codes).
    """
    if how == "float32":
        return weight, weight.nbytes
    # As one row, (1, O I), the whole matrix has one scale.
    w = weight if group >= 0 else weight.reshape(1, -1)
    width = group if group > 0 else w.shape[1]
    # What AWQ has multiplied the inputs' columns by.
    factors = 1
    if how == "GPTQ":
        few = weight_only.gptq(w, weight_only.hessian(x), bits, width)
    elif how == "AWQ":
        few, factors = weight_only.awq(w, x, bits, width)
    else:
        few = weight_only.rtn(w, bits, width)
    return (few.weight() / factors).view(weight.shape), few.bytes
