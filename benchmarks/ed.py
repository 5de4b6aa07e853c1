"""ED learning: the forward pass, the update of all layers at once, the whole step, and backpropagation.

Each version first takes one step from the same start as a float64 reference; its largest deviation is its
error. Then versions are timed in turns, with a tiny step (α = 1e-9), so that repetitions leave the network as
it was. PyTorch and BLAS have one thread, Numba all.
"""

import functools
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from benchmarks import ed_compiled, harness
from benchmarks.harness import Version, measure
from ed_lib import arrays, graphs, machine
from ed_lib.ed import EDNetwork, article, costs, rivals
from ed_lib.ed.network import obstacle

ALPHA, NEARLY_0 = 0.8, 1e-9
ROUNDING = {"float32": 1e-5, "float64": 1e-11}  # the largest deviation that is put down to it
START = {"rule": "signed", "init": "fan_in"}  # the article's rule; its start saturates the cells
WAYS = {"article": article.with_batch_axis, "einsum": article.by_einsum, "four products": article.by_product}
COSTS = {"forward": costs.forward, "update": costs.update, "step": costs.step}
LIBRARY = {"cpu": "numpy", "cuda": "torch"}


@dataclass(frozen=True)
class Size:
    """The article's shape, the sweep over depths, ``seconds`` for each version."""

    article: costs.Shape = costs.Shape(n_inputs=784, width=32, depth=4096, batch=64)
    depths: tuple = (64, 128, 256, 512, 1024, 2048, 4096)
    seconds: float = 0.5


SIZE, TINY = Size(), Size(costs.Shape(20, 4, 32, 8), (8, 16), 0.002)


def paths(size, device):
    """The network of this book by each path that this machine has; on a GPU also as a CUDA graph."""
    shape, library = size.article, LIBRARY[device]
    nets = {path: network(shape, library, device, path=path) for path in ("layers", "kernel")
            if obstacle(path, arrays.space(library, device), shape.width) is None}  # fmt: skip
    errors = {path: first_step(net, shape) for path, net in nets.items()}
    for what in COSTS:
        calls = {path: call_of(what, net, shape) for path, net in nets.items()}
        if device != "cpu":
            calls |= {f"{path}, graph": graphs.capture(calls[path], net.states) for path, net in nets.items()}
        yield from measure([
            version(shape, library, what, how, call, errors[how.partition(",")[0]])
            for how, call in calls.items()
        ], device, size.seconds)  # fmt: skip


def version(shape, library, what, how, call, error=None, dtype="float32", cost=None):
    case = {"library": library, "dtype": dtype} | asdict(shape) | {"what": what, "how": how}
    del case["itemsize"]
    return Version(case, call, cost or COSTS[what](shape), error, ROUNDING[dtype])


def call_of(what, net, shape):
    """What is timed of a network that has run: a method of it, on a batch."""
    x, target = a_batch(shape, net)
    given = {"forward": (x,), "update": (target * 0 + 0.5,), "step": (x, target)}
    return partial(getattr(net, what), *given[what])


def articles_formulas(size, device):
    """The article's forward pass, and its update with three ways to form the products."""
    library = "numpy" if device == "cpu" else "cupy"
    for dtype in ROUNDING:
        shape, errors = replace(size.article, itemsize=np.dtype(dtype).itemsize), {}
        machine.check_memory("the article's update", 2 * costs.batch_axis(shape), device)
        for how, products in WAYS.items():
            net = article.ArticleNetwork(network(shape, library, device, dtype, alpha=ALPHA, path="layers"))
            x, target = a_batch(shape, net.net)
            output = net.forward(x)
            net.update(target - output, products)
            errors[how] = deviation(shape, output, net.state["hidden.weight"])
        net.alpha, error = NEARLY_0, target - output
        updates = [("update", how, partial(net.update, error, way)) for how, way in WAYS.items()]
        for calls in ([("forward", "article", partial(net.forward, x))], updates):
            versions = [version(shape, library, *call, errors[call[1]], dtype) for call in calls]
            yield from measure(versions, device, size.seconds)


def by_hand(size, device):
    """ED and backpropagation by hand, with the same tools."""
    shape, library = size.article, LIBRARY[device]
    ed, same = (network(shape, library, device, path="layers") for _ in range(2))
    back = rivals.Backprop(same, rate=NEARLY_0)
    x, target = a_batch(shape, ed)
    error = target - ed.forward(x)
    back.step(x, target)
    mine = partial(version, shape, library)
    return measure([
        *(mine(what, "ED, layers", call_of(what, ed, shape)) for what in COSTS),
        mine("chain", "by hand", partial(back.chain, error), cost=costs.chain(shape)),
        mine("update", "by hand", back.learn),
        mine("step", "by hand", partial(back.step, x, target), cost=whole(shape)),
    ], device, size.seconds)  # fmt: skip


def autograd(size, device):
    """A step of ED in PyTorch, and one by PyTorch's autograd."""
    shape, net = size.article, network(size.article, "torch", device, path="layers")
    step = partial(rivals.Autograd(net, rate=NEARLY_0).step, *a_batch(shape, net))
    ours = version(shape, "torch", "step", "ED, layers", call_of("step", net, shape))
    theirs = version(shape, "torch", "step", "autograd", step, cost=whole(shape))
    return measure([ours, theirs], device, size.seconds)


def whole(shape):
    """The cost of a step of backpropagation."""
    return costs.both(costs.forward(shape), costs.chain(shape), costs.update(shape))


def compilers(size, device):
    """What torch.compile and JAX make of the hidden layers on a CPU, beside this book's loop and kernel."""
    net = network(size.article, "numpy", "cpu", path="layers")
    net.forward(a_batch(size.article, net)[0])
    return ed_compiled.rows(net, size.article, ROUNDING["float32"], size.seconds)


def by_depth(size, device):
    """A whole step by the path that the network takes by itself, for each depth."""
    versions = []
    for shape in (replace(size.article, depth=depth) for depth in size.depths):
        net = network(shape, LIBRARY[device], device)
        error, call = first_step(net, shape), call_of("step", net, shape)
        versions.append(version(shape, LIBRARY[device], "step", net.path, call, error))
    return measure(versions, device, size.seconds)


@functools.cache
def reference(shape):
    """The output and the hidden weights after one step in float64, by NumPy."""
    net = network(shape, "numpy", "cpu", "float64", alpha=ALPHA, path="layers")
    return net.step(*a_batch(shape, net)), net.state_dict()["hidden.weight"]


def deviation(shape, *found):
    """The largest, of an output and of a hidden weight, from the reference."""
    pairs = zip(map(arrays.to_numpy, found), reference(replace(shape, itemsize=8)), strict=True)
    return max(float(np.abs(mine.reshape(right.shape) - right).max()) for mine, right in pairs)


def first_step(net, shape):
    """Takes a step of full size, and leaves the network with the tiny one → the deviation."""
    net.alpha = ALPHA
    output = net.step(*a_batch(shape, net))
    net.alpha = NEARLY_0
    return deviation(shape, output, net.state_dict()["hidden.weight"])


def network(shape, library, device, dtype="float32", alpha=NEARLY_0, **options):
    sizes = shape.n_inputs, shape.width, shape.depth, shape.n_outputs
    return EDNetwork(*sizes, **START, alpha=alpha, dtype=dtype, backend=library, device=device, **options)


def a_batch(shape, net):
    """x (B, n_inputs) and target (B, K), the same for all, in the network's library."""
    rng = np.random.default_rng(1)
    x, target = rng.random((shape.batch, shape.n_inputs)), rng.integers(0, 2, (shape.batch, shape.n_outputs))
    return net.asarray(x), net.asarray(target)


TABLES = {"paths": paths, "article": articles_formulas, "by hand": by_hand, "autograd": autograd,
          "compilers": compilers, "depth": by_depth}  # fmt: skip
context = partial(harness.one_thread, flush_denormal=True)  # what is below 1e-38 is 0, as on a GPU
