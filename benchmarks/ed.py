"""ED learning: the update of all layers at once, the forward pass, the whole step, and backpropagation.

Each version first takes one step from the same start as a float64 reference. Its largest deviation is
recorded, and a version that deviates by more than rounding is not timed. Then versions are timed in turns.
For the timing the step is tiny (α = 1e-9), so that repetitions leave the network as it was.
"""

import dataclasses
from functools import partial

import numpy as np

from benchmarks.table import Table
from ed_lib import arrays, machine, records, roofline
from ed_lib.ed import EDNetwork, baselines, costs, paths

ARTICLE = costs.Shape(n_inputs=784, width=32, depth=4096, batch=64)
DEPTHS = (64, 128, 256, 512, 1024, 2048, 4096)
WIDTHS = (32, 64, 128, 256)
NETWORKS = (1, 2, 5, 10)
MODULES = ("ed_lib.ed", "ed_lib.timing", "ed_lib.roofline", "benchmarks")
ALPHA, TINY = 0.8, 1e-9
ROUNDING = {"float32": 1e-5, "float64": 1e-11}  # the largest deviation that is put down to it
# The article's rule. Its half-normal start saturates the cells; the time does not depend on that.
START = dict(rule="signed", init="fan_in")
ARTICLES_WAYS = {
    "article": baselines.with_batch_axis,
    "einsum": baselines.by_einsum,
    "four products": baselines.by_product,
}


def run(device, article=ARTICLE, depths=DEPTHS, widths=WIDTHS, networks=NETWORKS, seconds=1.0):
    """Measures everything on "cpu" or "cuda" → an :class:`ed_lib.records.Record`; ``seconds``, a version."""
    import torch

    torch.set_flush_denormal(True)  # numbers below 1e-38 count as 0 in every version, as they do on a GPU
    ceilings = {dtype: roofline.measure(device, dtype) for dtype in ("float32", "float64")}
    print(*ceilings.values(), sep="\n")
    table = Table(ceilings, seconds, launches=device != "cpu")
    smaller = dataclasses.replace(article, depth=article.depth // 8)
    for shape in (smaller, article):
        for dtype in ("float32", "float64"):
            articles_formulas(table, shape, dtype, device)
        every_path(table, shape, device)
        backpropagation(table, shape, device)
    one_step(table, "depth", [dataclasses.replace(article, depth=depth) for depth in depths], device)
    one_step(table, "width", [dataclasses.replace(smaller, width=width) for width in widths], device)
    one_step(table, "networks", [dataclasses.replace(smaller, n_outputs=k) for k in networks], device)
    parameters = {"article": dataclasses.asdict(article), "depths": depths, "widths": widths}
    parameters |= {"networks": networks, "seconds": seconds, "alpha": TINY, "flush_denormal": True} | START
    name, made = machine.name(device), records.provenance(MODULES, device)
    roofs = list(ceilings.values())
    return records.Record("ed", records.slug(name), name, made, parameters, roofs, table.rows)


def articles_formulas(table, shape, dtype, device):
    """The article's forward pass, and its update with three ways to form the products."""
    library = "numpy" if device == "cpu" else "cupy"
    if library == "cupy" and not arrays.gpu_count("cupy"):
        return print("the article's formulas: left out, CuPy sees no GPU")
    shape = dataclasses.replace(shape, itemsize=np.dtype(dtype).itemsize)
    if (needed := 2 * costs.batch_axis(shape)) > machine.memory(device):
        return print(f"the article's formulas: left out at depth {shape.depth}, {needed / 2**30:.0f} GiB")
    right, deviations = Reference(shape), {}
    for how, products in ARTICLES_WAYS.items():
        article = baselines.ArticleNetwork(network(shape, library, device, dtype, alpha=ALPHA))
        x, target = a_batch(shape, article.net)
        output = article.forward(x)
        article.update(target - output, products)
        deviations[how] = right.deviation(output, article.state["hidden.weight"])
    article.alpha, error = TINY, target - output
    ways = {how: way for how, way in ARTICLES_WAYS.items() if is_right(how, deviations[how], dtype)}
    case = {"table": "article"} | describe(shape, library, dtype)
    forward = {"article": lambda: article.forward(x)}
    table.measure("forward", forward, costs.forward(shape), case, deviations)
    updates = {how: lambda way=way: article.update(error, way) for how, way in ways.items()}
    table.measure("update", updates, costs.update(shape), case, deviations)
    steps = {"article": lambda: article.update(target - article.forward(x))}
    table.measure("step", steps, costs.step(shape), case, deviations)


def every_path(table, shape, device):
    """The network of this book by each path that this machine has."""
    right = Reference(shape)
    for library in ("numpy", "torch") if device == "cpu" else ("torch",):
        nets = {path: network(shape, library, device, path=path) for path in possible(library, device, shape)}
        deviations = {path: first_step(net, shape, right) for path, net in nets.items()}
        nets = {path: net for path, net in nets.items() if is_right(path, deviations[path], "float32")}
        case = {"table": "paths"} | describe(shape, library)
        x, target = a_batch(shape, next(iter(nets.values())))
        error = target * 0 + 0.5
        for what, cost, arguments in (
            ("forward", costs.forward, (x,)),
            ("update", costs.update, (error,)),
            ("step", costs.step, (x, target)),
        ):
            calls = {path: partial(getattr(net, what), *arguments) for path, net in nets.items()}
            table.measure(what, calls, cost(shape), case, deviations)


def backpropagation(table, shape, device):
    """ED against backpropagation, by hand on the same arrays, and by PyTorch's autograd."""
    library = "numpy" if device == "cpu" else "torch"
    ed = network(shape, library, device)
    by_hand = baselines.Backprop(network(shape, library, device), rate=TINY)
    x, target = a_batch(shape, ed)
    error = target - ed.forward(x)
    by_hand.step(x, target)
    parts = {
        ("forward", "ED"): lambda: ed.forward(x),
        ("update", "ED"): lambda: ed.update(error),
        ("step", "ED"): lambda: ed.step(x, target),
        ("chain", "by hand"): lambda: by_hand.chain(error),
        ("update", "by hand"): by_hand.learn,
        ("step", "by hand"): lambda: by_hand.step(x, target),
    }
    measure_parts(table, parts, shape, library)
    net = network(shape, "torch", device)
    autograd = baselines.Autograd(net, rate=TINY)
    x, target = a_batch(shape, net)
    loss = autograd.forward(x, target)
    parts = {
        ("step", "ED"): lambda: net.step(x, target),
        ("forward", "autograd"): lambda: autograd.forward(x, target),
        ("chain and gradients", "autograd"): lambda: autograd.backward(loss),
        ("update", "autograd"): autograd.descend,
        ("step", "autograd"): lambda: autograd.step(x, target),
    }
    if device != "cpu":
        parts["step", "autograd, graph"] = paths.record(lambda: autograd.step(x, target), x)
    measure_parts(table, parts, shape, "torch")


def measure_parts(table, parts, shape, library):
    """One row for each of parts {(what, how): function}, those of one ``what`` in turns; the floor is a step's."""
    case = {"table": "backpropagation"} | describe(shape, library)
    for what in dict.fromkeys(what for what, _ in parts):
        versions = {how: function for (name, how), function in parts.items() if name == what}
        table.measure(what, versions, costs.step(shape), case)


def one_step(table, sweep, shapes, device):
    """A whole step of the network by the path that it takes by itself."""
    library = "numpy" if device == "cpu" else "torch"
    for shape in shapes:
        net = network(shape, library, device)
        deviation = first_step(net, shape, Reference(shape))
        if is_right(net.path, deviation, "float32"):
            x, target = a_batch(shape, net)
            case = {"table": sweep} | describe(shape, library)
            table.measure(
                "step",
                {net.path: partial(net.step, x, target)},
                costs.step(shape),
                case,
                {net.path: deviation},
            )


class Reference:
    """One step in float64 with NumPy: what the first step of each version is compared with."""

    def __init__(self, shape):
        net = network(shape, "numpy", "cpu", "float64", alpha=ALPHA)
        self.output = net.step(*a_batch(shape, net))
        self.weight = net.state_dict()["hidden.weight"]

    def deviation(self, output, weight):
        """The largest deviation of an output or of a hidden weight."""
        weight = arrays.to_numpy(weight).reshape(self.weight.shape)
        of_output = np.abs(arrays.to_numpy(output) - self.output).max()
        return float(max(of_output, np.abs(weight - self.weight).max()))


def first_step(net, shape, right):
    """Takes a step of full size, and leaves the network with the tiny one → the deviation."""
    net.alpha = ALPHA
    output = net.step(*a_batch(shape, net))
    net.alpha = TINY
    return right.deviation(output, net.state_dict()["hidden.weight"])


def is_right(how, deviation, dtype):
    if not deviation <= ROUNDING[dtype]:
        print(f"{how}: deviates by {deviation:.1e} in {dtype}, more than rounding explains; not timed")
    return deviation <= ROUNDING[dtype]


def network(shape, library, device, dtype="float32", alpha=TINY, **options):
    sizes = shape.n_inputs, shape.width, shape.depth, shape.n_outputs
    return EDNetwork(*sizes, **START, alpha=alpha, dtype=dtype, backend=library, device=device, **options)


def possible(library, device, shape):
    """The paths that this machine has for this shape."""
    space = arrays.space(library, device)
    return [path for path in paths.PATHS if paths.obstacle(path, space, shape.width) is None]


def a_batch(shape, net):
    """x (B, n_inputs) and target (B, K), the same for all, in the network's library."""
    rng = np.random.default_rng(1)
    x, target = rng.random((shape.batch, shape.n_inputs)), rng.integers(0, 2, (shape.batch, shape.n_outputs))
    return net.asarray(x), net.asarray(target)


def describe(shape, library, dtype="float32"):
    sizes = {name: value for name, value in dataclasses.asdict(shape).items() if name != "itemsize"}
    return {"library": library, "dtype": dtype} | sizes
