"""ED learning: the update of all layers at once, the forward pass, the whole step, and backpropagation.

Each version first takes one step from the same start as a float64 reference. Its largest deviation is
recorded, and a version that deviates by more than rounding is not timed. Then versions are timed in turns.
For the timing the step is tiny (α = 1e-9), so that repetitions leave the network as it was.
"""

import dataclasses
import itertools
from functools import partial

import numpy as np

from benchmarks import ed_compiled
from benchmarks import old_harness as harness
from benchmarks.old_harness import Plan, Shown, Table, Version
from ed_lib import arrays, machine
from ed_lib.ed import EDNetwork, costs, rivals
from ed_lib.ed.article import ArticleNetwork, by_einsum, by_product, with_batch_axis
from ed_lib.ed.network import PATHS, obstacle

ARTICLE = costs.Shape(n_inputs=784, width=32, depth=4096, batch=64)
DEPTHS = (64, 128, 256, 512, 1024, 2048, 4096)
WIDTHS = (32, 64, 128, 256)
NETWORKS = (1, 2, 5, 10)
ALPHA, NEARLY_0 = 0.8, 1e-9
ROUNDING = {"float32": 1e-5, "float64": 1e-11}  # the largest deviation that is put down to it
START = dict(rule="signed", init="fan_in")  # the article's rule; its start saturates the cells
BATCHES = 8  # that the path "sweeps" is shown in turn, since it begins with what the last one left
MOST_NETWORKS = 16  # that take turns, so that none finds itself in the cache
ARTICLES_WAYS = {
    "article": with_batch_axis,
    "einsum": by_einsum,
    "four products": by_product,
}


@dataclasses.dataclass(frozen=True)
class Size:
    """What is run: the article's shape, the sweeps over sizes, ``seconds`` for each version."""

    article: costs.Shape = ARTICLE
    depths: tuple = DEPTHS
    widths: tuple = WIDTHS
    networks: tuple = NETWORKS
    seconds: float = 0.5


TINY = Size(costs.Shape(5, 2, 8, 3), (1, 4), (2, 3), (1, 2), 0.001)  # of a rehearsal


def prepare(device, size=None):
    """The :class:`benchmarks.harness.Plan` on "cpu" or "cuda"."""
    size = size or (Size() if device == "cpu" else Size(seconds=0.2))
    article, smaller = size.article, dataclasses.replace(size.article, depth=size.article.depth // 8)
    table = Table(harness.ceilings(device), size.seconds, device)

    def swept(name, **values):
        (key, numbers), *_ = values.items()
        base = article if key == "depth" else smaller
        return lambda: one_step(table, name, [dataclasses.replace(base, **{key: n}) for n in numbers], device)

    parts = {"paths": lambda: every_path(table, article, device)}
    parts |= {
        "article, float64": lambda: articles_formulas(table, article, "float64", device),
        "article, float32": lambda: articles_formulas(table, article, "float32", device),
        "backpropagation": lambda: backpropagation(table, article, device),
        "compilers": lambda: [compilers(table, one, device) for one in (article, smaller)],
        "depth": swept("depth", depth=size.depths),
        "networks": swept("networks", n_outputs=size.networks),
        "width": swept("width", width=size.widths),
        "smaller": lambda: [every_path(table, smaller, device), backpropagation(table, smaller, device),
                            *(articles_formulas(table, smaller, dtype, device) for dtype in ROUNDING)],
    }  # fmt: skip
    parameters = dataclasses.asdict(size) | {"alpha": NEARLY_0, "flush_denormal": True} | START
    parameters["threads"] = "1 for PyTorch and BLAS, all for Numba and for the ceilings"
    context = partial(harness.one_thread, flush_denormal=True)  # what is below 1e-38 is 0, as on a GPU
    return Plan(table, parts, parameters, partial(harness.ceilings, device), context)


def articles_formulas(table, shape, dtype, device):
    """The article's forward pass, and its update with three ways to form the products."""
    library = "numpy" if device == "cpu" else "cupy"
    if library == "cupy" and not arrays.gpu_count("cupy"):
        return print("the article's formulas: left out, CuPy sees no GPU")
    shape = dataclasses.replace(shape, itemsize=np.dtype(dtype).itemsize)
    if (needed := 2 * costs.batch_axis(shape)) > machine.memory(device):
        return print(f"the article's formulas: left out at depth {shape.depth}, {needed / 2**30:.0f} GiB")
    right, errors = Reference(shape, device), {}
    for how, products in ARTICLES_WAYS.items():
        article = ArticleNetwork(network(shape, library, device, dtype, alpha=ALPHA, path="layers"))
        x, target = a_batch(shape, article.net)
        output = article.forward(x)
        article.update(target - output, products)
        errors[how] = right.deviation(output, article.state["hidden.weight"])
    article.alpha, error = NEARLY_0, target - output

    def version(what, how, call, cost):
        case = describe(shape, "article", library, dtype) | {"what": what, "how": how}
        return Version(case, call, cost(shape), errors[how], ROUNDING[dtype])

    table.measure([version("forward", "article", lambda: article.forward(x), costs.forward)])
    updates = {how: partial(article.update, error, way) for how, way in ARTICLES_WAYS.items()}
    table.measure([version("update", how, update, costs.update) for how, update in updates.items()])
    if dtype == "float32" or device != "cpu":  # on a CPU it takes long, and is the sum of the two
        step = version("step", "article", lambda: article.update(target - article.forward(x)), costs.step)
        table.measure([step])


def every_path(table, shape, device):
    """The network of this book by each path that this machine has."""
    right = Reference(shape, device)
    for library in ("numpy", "torch") if device == "cpu" else ("torch",):
        space = arrays.space(library, device)
        possible = [path for path in PATHS if obstacle(path, space, shape.width) is None]
        nets = {path: network(shape, library, device, path=path) for path in possible}
        errors = {path: first_step(net, shape, right) for path, net in nets.items()}
        for what, cost in (("forward", costs.forward), ("update", costs.update), ("step", costs.step)):
            table.measure([
                Version(describe(shape, "paths", library) | {"what": what, "how": path},
                        call_of(what, net, shape, device), cost(shape), errors[path], ROUNDING["float32"],
                        partial(how_swept, net) if path == "sweeps" and what != "update" else None)
                for path, net in nets.items()
            ])  # fmt: skip


def compilers(table, shape, device):
    """What torch.compile and JAX make of the hidden layers, beside this book's loop and kernel."""
    net = network(shape, "numpy" if device == "cpu" else "torch", device, path="layers")
    net.forward(a_batch(shape, net)[0])
    ed_compiled.measure(table, net, shape, ROUNDING["float32"])


def call_of(what, net, shape, device):
    """What is timed of a network: a method of it, on a batch.

    By the path "sweeps" a forward pass is given several batches in turn. On a GPU an update, which does
    little but move numbers, is that of several networks in turn, so that none finds its own in the cache.
    """
    batches = [a_batch(shape, net, seed) for seed in range(1, 1 + (BATCHES if net.path == "sweeps" else 1))]
    half = batches[0][1] * 0 + 0.5
    nets = [net]
    if what == "update" and device != "cpu":
        nets += [network(shape, net.space.backend, device, path=net.path)
                 for _ in range(turns(costs.update(shape)[0], device) - 1)]  # fmt: skip
        for other in nets[1:]:
            other.forward(batches[0][0])
    given = {"forward": [batch[:1] for batch in batches], "update": [(half,)], "step": batches}[what]
    calls = [partial(getattr(one, what), *arguments) for one in nets for arguments in given]
    return calls[0] if len(calls) == 1 else in_turn(calls)


def in_turn(calls):
    """A function that makes one of these calls each time, one after the other."""
    endless = itertools.cycle(calls)
    return lambda: next(endless)()


def turns(bytes, device):
    """How many arrays of so many bytes it takes to fill the GPU's last cache four times."""
    import torch

    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return min(MOST_NETWORKS, 1 + 4 * cache // bytes)


def how_swept(net):
    swept = net.swept
    return {"sweeps": [swept.sweeps], "layers": [swept.layers], "walk": [int(swept.walk)]}


def backpropagation(table, shape, device):
    """ED against backpropagation with the same tools: by hand on like arrays, and by PyTorch's autograd."""
    library = "numpy" if device == "cpu" else "torch"
    ed, same = (network(shape, library, device, path="layers") for _ in range(2))
    by_hand = rivals.Backprop(same, rate=NEARLY_0)
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
    nets = {path: network(shape, "torch", device, path=path) for path in ("layers", "kernel")
            if obstacle(path, arrays.space("torch", device), shape.width) is None}  # fmt: skip
    x, target = a_batch(shape, nets["layers"])
    recorded = None
    if device != "cpu":  # before any other step, whose gradients would belong to another stream
        fresh = rivals.Autograd(nets["layers"], rate=NEARLY_0)
        case = {"table": "autograd", "what": "step", "how": "autograd, graph"}
        recorded = harness.recorded(case, partial(fresh.step, x, target), x)
    autograd = rivals.Autograd(nets["layers"], rate=NEARLY_0)
    loss = autograd.forward(x, target)
    parts = {("step", f"ED, {path}"): (partial(net.step, x, target), step) for path, net in nets.items()}
    parts |= {
        ("forward", "autograd"): (partial(autograd.forward, x, target), forward),
        ("chain and gradients", "autograd"): (
            partial(autograd.backward, loss), costs.both(chain, costs.gradients(shape))),
        ("update", "autograd"): (autograd.descend, costs.descent(shape)),
        ("step", "autograd"): (partial(autograd.step, x, target), whole),
    }  # fmt: skip
    if recorded:
        parts["step", "autograd, graph"] = recorded, whole
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
        error = first_step(net, shape, Reference(shape, device))
        case = describe(shape, sweep, library) | {"what": "step", "how": net.path}
        call = partial(net.step, *a_batch(shape, net))
        versions.append(Version(case, call, costs.step(shape), error, ROUNDING["float32"]))
    table.measure(versions)


class Reference:
    """One step in float64: what the first step of each version is compared with. On a GPU it is PyTorch's
    there; where that is quickly done, it is compared with NumPy's first.
    """

    def __init__(self, shape, device="cpu"):
        backend = "numpy" if device == "cpu" else "torch"
        net = network(shape, backend, device, "float64", alpha=ALPHA, path="layers")
        self.output = arrays.to_numpy(net.step(*a_batch(shape, net)))
        self.weight = net.state_dict()["hidden.weight"]
        if device != "cpu" and self.weight.size < 2**20:
            right = Reference(shape)
            if (error := right.deviation(self.output, self.weight)) > ROUNDING["float64"]:
                raise ArithmeticError(f"the reference on {device} deviates by {error:.1e} from NumPy's")

    def deviation(self, output, weight):
        """The largest deviation of an output or of a hidden weight."""
        weight = arrays.to_numpy(weight).reshape(self.weight.shape)
        of_output = np.abs(arrays.to_numpy(output) - self.output).max()
        return float(max(of_output, np.abs(weight - self.weight).max()))


def first_step(net, shape, right):
    """Takes a step of full size, and leaves the network with the tiny one → the deviation."""
    net.alpha = ALPHA
    output = net.step(*a_batch(shape, net))
    net.alpha = NEARLY_0
    return right.deviation(output, net.state_dict()["hidden.weight"])


def network(shape, library, device, dtype="float32", alpha=NEARLY_0, **options):
    sizes = shape.n_inputs, shape.width, shape.depth, shape.n_outputs
    return EDNetwork(*sizes, **START, alpha=alpha, dtype=dtype, backend=library, device=device, **options)


def a_batch(shape, net, seed=1):
    """x (B, n_inputs) and target (B, K), the same for all, in the network's library."""
    rng = np.random.default_rng(seed)
    x, target = rng.random((shape.batch, shape.n_inputs)), rng.integers(0, 2, (shape.batch, shape.n_outputs))
    return net.asarray(x), net.asarray(target)


def describe(shape, table, library, dtype="float32"):
    sizes = {name: value for name, value in dataclasses.asdict(shape).items() if name != "itemsize"}
    return {"table": table, "library": library, "dtype": dtype} | sizes


# The page
TITLE = "Steps of ED"
MEANING = """Times of ED's forward pass, its update and whole steps, beside the source article's formulas and
beside backpropagation. *D* is the depth, *W* the width in pairs of cells, *K* the number of networks."""
STEP = (
    *("what", "how", ("arrays", lambda row: f"{row.case['library']} {row.case['dtype']}")),
    *(("D", "depth"), ("W", "width"), ("K", "n_outputs")),
)
TITLES = {
    "article": "The source article's formulas",
    "paths": "The paths through the network",
    "by hand": "ED and backpropagation by hand",
    "autograd": "ED and PyTorch's autograd",
    "compilers": "The hidden layers, as compilers make them",
    "depth": "A step, by depth",
    "width": "A step, by width",
    "networks": "A step, by number of networks",
}
PAGE = {name: [Shown(title, STEP, ("time", "× floor"), ("deviation",))] for name, title in TITLES.items()}
