"""How the GPU kernels of ED learning are cut: the choices behind ``kernels.forward_cut`` and ``update_cut``.

The kernels alone, as CUDA graphs, at the article's size. Each is compared with the formulas in float64.
"""

import dataclasses

import torch

from benchmarks.old_harness import Version
from ed_lib import devices
from ed_lib.ed import costs, folded, kernels

U0, RATE = 0.4, 1e-12
FORWARD = [  # by what they are compiled to: the one that should be the fastest on Hopper first
    kernels.Forward(1, "ieee", 1, 8), kernels.Forward(1, "ieee", 2, 8), kernels.Forward(1, "ieee", 1, 4),
    kernels.Forward(1, "ieee", 4, 8), kernels.Forward(2, "ieee", 2, 8), kernels.Forward(2, "ieee", 1, 8),
    kernels.Forward(2, "ieee", 4, 8), kernels.Forward(1, "ieee", 8, 8),
    kernels.Forward(16, "tf32x3", 4, 4), kernels.Forward(16, "tf32x3", 8, 4),
]  # fmt: skip
UPDATE = [
    kernels.Update(32, 64, "tf32x3", 4, 2), kernels.Update(16, 64, "tf32x3", 4, 3),
    kernels.Update(16, 64, "tf32x3", 4, 2), kernels.Update(32, 64, "tf32x3", 4, 1),
    kernels.Update(64, 64, "tf32x3", 4, 1), kernels.Update(16, 64, "ieee", 4, 2),
]  # fmt: skip


def measure(table, shape, device):
    """{table: "variants", what, how: the cut} → rows: every cut that this GPU can run and that is right."""
    for what, cuts, of in (("forward", FORWARD, forward), ("update", UPDATE, update)):
        versions = [version for cut in cuts if (version := of(shape, device, cut))]
        table.measure(versions)
        if made := [
            row for row in table.rows if row.case["table"] == "variants" and row.case["what"] == what
        ]:
            best = min(made, key=lambda row: row.completion.median)
            print(f"{what}: the best cut is {best.case['how']}")


def arrays_of(shape, device):
    """states (D + 1, K, B, C), weight (D, K, C, C), bias (D, K, 1, C) and error (B, K), in float64."""
    draw = torch.Generator(device).manual_seed(0)
    depth, networks, cells = shape.depth, shape.n_outputs, 2 * shape.width
    like = {"device": device, "dtype": torch.float64, "generator": draw}
    states = torch.rand(depth + 1, networks, shape.batch, cells, **like)
    weight = torch.randn(depth, networks, cells, cells, **like) / cells**0.5
    bias, error = torch.randn(depth, networks, 1, cells, **like), torch.rand(shape.batch, networks, **like)
    return states, weight, bias, error


def forward(shape, device, cut):
    """The :class:`Version` of the walk through the hidden layers; None if it cannot be run."""
    right, *given = arrays_of(shape, device)
    states, weight, bias, _ = (array.float() for array in (right, *given))
    folded.hidden_layers(right, *given[:2], U0)
    return tried("forward", shape, cut, states, lambda: kernels.forward(states, weight, bias, U0, cut=cut),
                 lambda: (states - right).abs().max())  # fmt: skip


def update(shape, device, cut):
    """Likewise of the update of the hidden layers; of its error in each weight, with a step of 1."""
    given = arrays_of(shape, device)
    states, weight, bias, error = (array.float() for array in given)
    rate = torch.ones((), device=device)
    change = torch.zeros_like(given[1])
    gains = folded.gains(given[3], "signed")  # (K, 2, B)
    folded.learn(change, torch.zeros_like(given[2]), given[0][:-1], given[0][1:], gains, given[3].T[:, None])
    start = weight.clone()

    def call():
        kernels.update(weight, bias, states[:-1], states[1:], error, rate, "signed", cut=cut)

    def deviation():
        found = (weight - start - change).abs().max() / change.abs().max()
        rate.fill_(RATE)  # from now on, so that repetitions leave the weights as they are
        return found

    return tried("update", shape, cut, states, call, deviation)


def tried(what, shape, cut, like, call, deviation):
    """The version of a call that has run once, as a graph; None, said why, if this GPU cannot run it."""
    name = " ".join(f"{key} {value}" for key, value in cut._asdict().items())
    try:
        call()
        error = float(deviation())
        graph = devices.record(call, like)
    except Exception as problem:  # of a compiler, or of a driver
        return print(f"{what}, {name}: left out, {problem!r:.150}")
    sizes = {key: value for key, value in dataclasses.asdict(shape).items() if key != "itemsize"}
    case = {"table": "variants", "library": "torch", "dtype": "float32", "what": what, "how": name} | sizes
    return Version(case, graph, getattr(costs, what)(shape), error, 1e-5)
