"""ED learning: the update of all layers at once, the forward pass, the whole step, and backpropagation.

Each version first takes one step from the same start as a float64 reference. Its largest deviation is
recorded, and a version that deviates by more than rounding is not timed. Then versions are timed in turns.
For the timing the step is tiny (α = 1e-9), so that repetitions leave the network as it was.
"""

import dataclasses
from functools import partial

import numpy as np

from benchmarks.table import Table, Version
from ed_lib import arrays, devices, machine, records, roofline
from ed_lib.ed import EDNetwork, baselines, costs, paths

ARTICLE = costs.Shape(n_inputs=784, width=32, depth=4096, batch=64)
DEPTHS = (64, 128, 256, 512, 1024, 2048, 4096)
WIDTHS = (32, 64, 128, 256)
NETWORKS = (1, 2, 5, 10)
MODULES = ("ed_lib.ed", "ed_lib.timing", "ed_lib.roofline", "benchmarks")
ALPHA, TINY = 0.8, 1e-9
ROUNDING = {"float32": 1e-5, "float64": 1e-11}  # the largest deviation that is put down to it
START = dict(rule="signed", init="fan_in")  # the article's rule; its start saturates the cells
ARTICLES_WAYS = {
    "article": baselines.with_batch_axis,
    "einsum": baselines.by_einsum,
    "four products": baselines.by_product,
}


def run(device, article=ARTICLE, depths=DEPTHS, widths=WIDTHS, networks=NETWORKS, seconds=0.5):
    """Measures everything on "cpu" or "cuda" → an :class:`ed_lib.records.Record`; ``seconds``, a version."""
    import torch

    torch.set_flush_denormal(True)  # numbers below 1e-38 count as 0 in every version, as they do on a GPU
    table = Table(measured_ceilings(device), seconds, launches=device != "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as NumPy's products: too small to share
    smaller = dataclasses.replace(article, depth=article.depth // 8)
    for shape in (smaller, article):
        for dtype in ("float32", "float64"):
            articles_formulas(table, shape, dtype, device)
        every_path(table, shape, device)
        backpropagation(table, shape, device)
    one_step(table, "depth", [dataclasses.replace(article, depth=depth) for depth in depths], device)
    one_step(table, "width", [dataclasses.replace(smaller, width=width) for width in widths], device)
    one_step(table, "networks", [dataclasses.replace(smaller, n_outputs=k) for k in networks], device)
    torch.set_num_threads(threads)
    table.raise_ceilings(measured_ceilings(device))  # a machine that was busy at the start may not be now
    parameters = {"article": dataclasses.asdict(article), "depths": depths, "widths": widths}
    parameters |= {"networks": networks, "seconds": seconds, "alpha": TINY, "flush_denormal": True} | START
    parameters["threads"] = "1 for PyTorch and BLAS, all for Numba and for the ceilings"
    name, made = machine.name(device), records.provenance(MODULES, device)
    roofs = list(table.ceilings.values())
    return records.Record("ed", records.slug(name), name, made, parameters, roofs, table.rows)


def measured_ceilings(device):
    ceilings = {dtype: roofline.measure(device, dtype) for dtype in ("float32", "float64")}
    print(*ceilings.values(), sep="\n")
    return ceilings


def articles_formulas(table, shape, dtype, device):
    """The article's forward pass, and its update with three ways to form the products."""
    library = "numpy" if device == "cpu" else "cupy"
    if library == "cupy" and not arrays.gpu_count("cupy"):
        return print("the article's formulas: left out, CuPy sees no GPU")
    shape = dataclasses.replace(shape, itemsize=np.dtype(dtype).itemsize)
    if (needed := 2 * costs.batch_axis(shape)) > machine.memory(device):
        return print(f"the article's formulas: left out at depth {shape.depth}, {needed / 2**30:.0f} GiB")
    right, errors = Reference(shape), {}
    for how, products in ARTICLES_WAYS.items():
        article = baselines.ArticleNetwork(network(shape, library, device, dtype, alpha=ALPHA, path="layers"))
        x, target = a_batch(shape, article.net)
        output = article.forward(x)
        article.update(target - output, products)
        errors[how] = right.deviation(output, article.state["hidden.weight"])
    article.alpha, error = TINY, target - output

    def version(what, how, call, cost):
        case = describe(shape, "article", library, dtype) | {"what": what, "how": how}
        return Version(case, call, cost(shape), errors[how])

    ways = {how: way for how, way in ARTICLES_WAYS.items() if is_right(how, errors[how], dtype)}
    table.measure([version("forward", "article", lambda: article.forward(x), costs.forward)])
    table.measure(
        [version("update", h, partial(article.update, error, w), costs.update) for h, w in ways.items()]
    )
    if dtype == "float32" or device != "cpu":  # on a CPU it takes long, and is the sum of the two
        step = version("step", "article", lambda: article.update(target - article.forward(x)), costs.step)
        table.measure([step])


def every_path(table, shape, device):
    """The network of this book by each path that this machine has."""
    right = Reference(shape)
    for library in ("numpy", "torch") if device == "cpu" else ("torch",):
        space = arrays.space(library, device)
        possible = [path for path in paths.PATHS if paths.obstacle(path, space, shape.width) is None]
        nets = {path: network(shape, library, device, path=path) for path in possible}
        errors = {path: first_step(net, shape, right) for path, net in nets.items()}
        x, target = a_batch(shape, nets["layers"])
        half = target * 0 + 0.5
        for what, cost, arguments in (
            ("forward", costs.forward, (x,)),
            ("update", costs.update, (half,)),
            ("step", costs.step, (x, target)),
        ):
            table.measure([
                Version(describe(shape, "paths", library) | {"what": what, "how": path},
                        partial(getattr(net, what), *arguments), cost(shape), errors[path])
                for path, net in nets.items() if is_right(path, errors[path], "float32")
            ])  # fmt: skip


def backpropagation(table, shape, device):
    """ED against backpropagation with the same tools: by hand on like arrays, and by PyTorch's autograd."""
    library = "numpy" if device == "cpu" else "torch"
    ed, same = (network(shape, library, device, path="layers") for _ in range(2))
    by_hand = baselines.Backprop(same, rate=TINY)
    x, target = a_batch(shape, ed)
    error = target - ed.forward(x)
    by_hand.step(x, target)
    forward, chain, update = costs.forward(shape), costs.chain(shape), costs.update(shape)
    step, whole = costs.step(shape), costs.both(forward, chain, update)
    measure_parts(table, "by hand", shape, library, {
        ("forward", "ED, layers"): (partial(ed.forward, x), forward),
        ("update", "ED, layers"): (partial(ed.update, error), update),
        ("step", "ED, layers"): (partial(ed.step, x, target), step),
        ("chain", "by hand"): (partial(by_hand.chain, error), chain),
        ("update", "by hand"): (by_hand.learn, update),
        ("step", "by hand"): (partial(by_hand.step, x, target), whole),
    })  # fmt: skip
    nets = {path: network(shape, "torch", device, path=path) for path in ("layers", "graph", "kernel")
            if paths.obstacle(path, arrays.space("torch", device), shape.width) is None}  # fmt: skip
    autograd = baselines.Autograd(nets["layers"], rate=TINY)
    x, target = a_batch(shape, nets["layers"])
    loss = autograd.forward(x, target)
    parts = {("step", f"ED, {path}"): (partial(net.step, x, target), step) for path, net in nets.items()}
    parts |= {
        ("forward", "autograd"): (partial(autograd.forward, x, target), forward),
        ("chain and gradients", "autograd"): (
            partial(autograd.backward, loss), costs.both(chain, costs.gradients(shape))),
        ("update", "autograd"): (autograd.descend, costs.descent(shape)),
        ("step", "autograd"): (partial(autograd.step, x, target), whole),
    }  # fmt: skip
    if device != "cpu":
        parts["step", "autograd, graph"] = devices.record(partial(autograd.step, x, target), x), whole
    measure_parts(table, "autograd", shape, "torch", parts)


def measure_parts(table, name, shape, library, parts):
    """One row for each of parts {(what, how): (function, cost)}, all of them in turns."""
    case = describe(shape, name, library)
    table.measure([Version(case | {"what": w, "how": h}, *part) for (w, h), part in parts.items()])


def one_step(table, sweep, shapes, device):
    """A whole step by the path that the network takes by itself, for each of the shapes."""
    library, versions = "numpy" if device == "cpu" else "torch", []
    for shape in shapes:
        net = network(shape, library, device)
        error = first_step(net, shape, Reference(shape))
        if is_right(net.path, error, "float32"):
            case = describe(shape, sweep, library) | {"what": "step", "how": net.path}
            versions.append(Version(case, partial(net.step, *a_batch(shape, net)), costs.step(shape), error))
    table.measure(versions)


class Reference:
    """One step in float64 with NumPy: what the first step of each version is compared with."""

    def __init__(self, shape):
        net = network(shape, "numpy", "cpu", "float64", alpha=ALPHA, path="layers")
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


def is_right(how, error, dtype):
    if not error <= ROUNDING[dtype]:
        print(f"{how}: deviates by {error:.1e} in {dtype}, more than rounding explains; not timed")
    return error <= ROUNDING[dtype]


def network(shape, library, device, dtype="float32", alpha=TINY, **options):
    sizes = shape.n_inputs, shape.width, shape.depth, shape.n_outputs
    return EDNetwork(*sizes, **START, alpha=alpha, dtype=dtype, backend=library, device=device, **options)


def a_batch(shape, net):
    """x (B, n_inputs) and target (B, K), the same for all, in the network's library."""
    rng = np.random.default_rng(1)
    x, target = rng.random((shape.batch, shape.n_inputs)), rng.integers(0, 2, (shape.batch, shape.n_outputs))
    return net.asarray(x), net.asarray(target)


def describe(shape, table, library, dtype="float32"):
    sizes = {name: value for name, value in dataclasses.asdict(shape).items() if name != "itemsize"}
    return {"table": table, "library": library, "dtype": dtype} | sizes
