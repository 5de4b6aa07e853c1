"""A model's weights rounded to few bits, after training, in every way of the book.

Letters: I inputs of a layer, O outputs, N rows that it is given.
"""

import copy
import time

import numpy as np
import torch
from torch import nn

from benchmarks.shared.harness import summary
from ed_lib.precision import quantization, weight_only
from ed_lib.precision.weight_only import FewBits

HOWS = "nearest", "GPTQ", "AWQ"
# What is tried of four bits, by how many neighbours share a grid: 0 is a row, all its inputs.
BY_GRID = {
    0: ("nearest", "clipped", "columns", "AWQ", "GPTQ"),
    128: ("nearest", "clipped", "columns", "AWQ", "GPTQ"),
    64: ("one scale", "NF4"),
}
# Those that look at inputs, and so depend on the sentences that they are calibrated on.
CALIBRATED = "AWQ", "GPTQ"
# Columns that are kept in sixteen bits: those with the largest weights.
COLUMNS = 4
# A clipped grid ends at one of these shares of its numbers' ends: 1, 0.95, … 0.05.
SHARES = [1 - n / 20 for n in range(20)]
# The numbers of NF4 (QLoRA, arXiv 2305.14314, appendix E), eight above 0 and seven below.
NF4 = (
    (-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0)
    + (0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0)
)  # fmt: skip


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


def grid_cases(calibrations):
    """float32, and the ways to four bits of BY_GRID; those that look at inputs for each set."""
    yield {"how": "float32", "bits": 32, "group": 0, "calibration": 0}
    for n in range(calibrations):
        for group, hows in BY_GRID.items():
            for how in hows if n == 0 else [how for how in hows if how in CALIBRATED]:
                yield {"how": how, "bits": 4, "group": group, "calibration": n}


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
    elif how in OTHERS:
        return OTHERS[how](w, bits, width)
    else:
        few = weight_only.rtn(w, bits, width)
    return (few.weight() / factors).view(weight.shape), few.bytes


def clipped(weight, bits, group):
    """Each grid ends at a share of its numbers' ends, that with the least squared error of the
    weights (O, I); numbers beyond it become its ends.
    """
    groups = weight.unflatten(1, (-1, group))
    scale, least = weight_only.grids(weight, bits, group)
    best = torch.full_like(scale, torch.inf)
    kept = [torch.zeros_like(groups), scale, least]
    for share in SHARES:
        # (O, I / group, 1) both
        step, low = share * scale[..., None], share * least[..., None]
        codes = weight_only.encode(groups, step, low, bits)
        error = (codes * step + low - groups).square().sum(2)
        better = error < best
        best = torch.where(better, error, best)
        found = codes, step[..., 0], low[..., 0]
        masks = better[..., None], better, better
        kept = [torch.where(*each) for each in zip(masks, found, kept, strict=True)]
    few = FewBits(kept[0].flatten(1).to(torch.uint8), kept[1], kept[2], bits)
    return few.weight(), few.bytes


def but_columns(weight, bits, group):
    """To nearest, but for the columns with the largest weights, which stay in sixteen bits and
    stretch no grid.
    """
    columns = weight.abs().amax(0).topk(COLUMNS).indices
    rest = weight.clone()
    rest[:, columns] = 0
    few = weight_only.rtn(rest, bits, group)
    numbers = few.weight()
    numbers[:, columns] = weight[:, columns].half().float()
    # Two bytes for each of their numbers, and for the place of each column.
    return numbers, few.bytes + 2 * COLUMNS * (len(weight) + 1)


def one_scale(weight, bits, group):
    """To nearest on even grids around 0, with a scale and no least number: codes −7 to 7."""
    groups = weight.reshape(-1, group)
    scale = quantization.choose_scale(groups, bits)
    numbers = quantization.quantize(groups, scale, bits) * scale
    return numbers.view(weight.shape), _bytes(weight, bits, group)


def normal_floats(weight, bits, group):
    """To the nearest number of NF4 times a group's largest, QLoRA's format."""
    groups = weight.reshape(-1, group)
    scale = groups.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    grid = torch.tensor(NF4)
    codes = torch.bucketize(groups / scale, (grid[1:] + grid[:-1]) / 2)
    return (grid[codes] * scale).view(weight.shape), _bytes(weight, bits, group)


def _bytes(weight, bits, group):
    """Of codes, and of scales in sixteen bits each."""
    return weight.numel() * bits // 8 + 2 * weight.numel() // group


OTHERS = {
    "clipped": clipped, "columns": but_columns, "one scale": one_scale, "NF4": normal_floats,
}  # fmt: skip


def agreement(people, cosines, before, resamples):
    """Spearman's correlation of cosines with what people said, (N,) both; and the standard error of
    its distance from that of the cosines ``before``, over so many draws of N pairs.
    """
    # A bare machine with a GPU may lack scipy.
    from scipy.stats import spearmanr

    draw = np.random.default_rng(0)
    away = []
    for _ in range(resamples):
        some = draw.integers(len(people), size=len(people))
        after, exact = (spearmanr(each[some], people[some]).statistic for each in (cosines, before))
        away.append(after - exact)
    return float(spearmanr(cosines, people).statistic), float(np.std(away))


def replaced(net, seen, how, bits, group, **_):
    """Puts rounded weights into the layers of a network that are named in seen, {name: inputs} →
    the seconds and bytes. The numbers of before are kept in it, for the next.
    """
    if not hasattr(net, "exact"):
        net.exact = {name: net.get_submodule(name).weight.detach().clone() for name in seen}
    start = time.perf_counter()
    bytes = 0
    for name, weight in net.exact.items():
        numbers, size = rounded(weight, seen[name], how, bits, group)
        net.get_submodule(name).weight.data = numbers
        bytes += size
    return summary([time.perf_counter() - start]) | {"bytes": bytes}
