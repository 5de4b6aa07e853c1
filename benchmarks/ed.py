"""ED learning: the forward pass, the update of all layers at once, and what backpropagation has
beside them.

Each version first takes one step from the same start as a float64 reference; its largest deviation
is its error. Then versions are timed in turns, with a tiny step (α = 1e-9), so that repetitions
leave the network as it was. Each row tells its threads: all, then one. With one the whole process
has one core, since JAX keeps the threads that it began with.
"""

import contextlib
import functools
import os
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import torch

from benchmarks.shared import harness
from benchmarks.shared.harness import Size, Version, measure
from ed_lib import machine
from ed_lib.ed import EDNetwork, costs, layout, rivals
from ed_lib.ed.space import to_numpy

ALPHA = 0.8
NEARLY_0 = 1e-9
U0 = 0.4
# The largest deviation that is put down to rounding.
ROUNDING = {"float32": 1e-5, "float64": 1e-11}
# The article's rule, but not its start, which saturates the cells.
START = {"rule": "signed", "init": "fan_in"}
COSTS = {"forward": costs.forward_cost, "update": costs.update_cost, "step": costs.step_cost}
LIBRARY = {"cpu": "numpy", "cuda": "cupy"}
# Layers that torch.compile is shown at a time: it unrolls the loop over them.
BLOCK = 16


# The article's shape, the depth of the second size, seconds for each version.
SIZE = Size(
    article=costs.Shape(n_inputs=784, width=32, depth=4096, batch=64), shallow=512, seconds=0.5
)
TINY = Size(article=costs.Shape(20, 4, 32, 8), shallow=16, seconds=0.002)


@contextlib.contextmanager
def on(threads):
    """All libraries on so many threads, and the process on so many cores."""
    import numba
    from threadpoolctl import threadpool_limits

    # Threads that the libraries have begun keep cores of their own.
    before = {int(task): os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")}
    for task, cores in before.items():
        os.sched_setaffinity(task, sorted(cores)[:threads])
    numba.set_num_threads(threads)
    try:
        with harness.one_thread(flush_denormal=True, threads=threads), threadpool_limits(threads):
            yield
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        for task in map(int, os.listdir("/proc/self/task")):
            os.sched_setaffinity(task, before.get(task, before[os.getpid()]))


def by_threads(table):
    """A table whose rows are made once for each number of threads; on a GPU once."""

    def rows(size, device):
        on_cpu = device == "cpu"
        # All threads first: JAX keeps those that it began with.
        for threads in sorted({1, machine.threads()}, reverse=True) if on_cpu else [1]:
            with on(threads) if on_cpu else contextlib.nullcontext():
                for row in table(size, device):
                    yield row | {"threads": threads}

    return rows


def version(shape, library, what, how, call, error=None, dtype="float32", cost=None):
    case = (
        {"library": library, "dtype": dtype}
        | asdict(shape)
        | {"what": what, "how": how, "threads": 0}
    )
    del case["itemsize"]
    return Version(case, call, cost or COSTS[what](shape), error, ROUNDING[dtype])


def paths(size, device):
    """This book's kernels; layer by layer its network stands in the table "by hand"."""
    shape, library = size.article, LIBRARY[device]
    net = network(shape, library, device, alpha=ALPHA, path="kernel")
    x, target = a_batch(shape, net)
    output = net.step(x, target)
    error = deviation(shape, output, net.state_dict()["hidden.weight"])
    net.alpha = NEARLY_0
    calls = {"forward": partial(net.forward, x), "update": partial(net.update, target * 0 + 0.5)}
    versions = [
        version(shape, library, what, "kernel", call, error) for what, call in calls.items()
    ]
    return measure(versions, device, size.seconds)


def articles_formulas(size, device):
    """The article's forward pass and its update, which makes 8 GiB of products in float64."""
    for dtype in ROUNDING:
        shape = replace(size.article, itemsize=np.dtype(dtype).itemsize)
        machine.check_memory("the article's update", 2 * costs.batch_axis(shape), device)
        ours = network(shape, LIBRARY[device], device, dtype, alpha=ALPHA, path="layers")
        net = rivals.ArticleNetwork(ours)
        x, target = a_batch(shape, ours)
        output = net.forward(x)
        net.update(target - output)
        error = deviation(shape, output, net.state["hidden.weight"])
        net.alpha = NEARLY_0
        calls = {"forward": partial(net.forward, x), "update": partial(net.update, target - output)}
        for what, call in calls.items():
            one = version(shape, LIBRARY[device], what, "article", call, error, dtype)
            yield from measure([one], device, size.seconds)


def by_hand(size, device):
    """ED and backpropagation by hand, with the same tools."""
    shape, library = size.article, LIBRARY[device]
    ed, same = (network(shape, library, device, path="layers") for _ in range(2))
    back = rivals.Backprop(same, rate=NEARLY_0)
    x, target = a_batch(shape, ed)
    error = target - ed.forward(x)
    same.forward(x)
    back.chain(error)
    mine = partial(version, shape, library)
    return measure([
        mine("forward", "ED, layers", partial(ed.forward, x)),
        mine("update", "ED, layers", partial(ed.update, error)),
        mine("chain", "by hand", partial(back.chain, error), cost=costs.forward_cost(shape)),
        mine("update", "by hand", back.learn),
    ], device, size.seconds)  # fmt: skip


def autograd(size, device):
    """A step of ED in PyTorch, and one by PyTorch's autograd, on a CPU."""
    shape = size.article
    net = network(shape, "torch", "cpu", path="layers")
    batch = a_batch(shape, net)
    layers = rivals.by_layer(net.parameters, lambda p: p.clone().requires_grad_())
    weights = [weight for layer in layers for weight in layer]

    def by_autograd(x, target):
        gradients = torch.autograd.grad(rivals.loss(layers, U0, x, target), weights)
        torch._foreach_add_([weight.data for weight in weights], gradients, alpha=-NEARLY_0)

    ours = version(shape, "torch", "step", "ED, layers", partial(net.step, *batch))
    cost = costs.step_cost(shape, passes=2)
    backward = version(shape, "torch", "step", "autograd", partial(by_autograd, *batch), cost=cost)
    return measure([ours, backward], device, size.seconds)


def compilers(size, device):
    """What torch.compile and JAX make of the hidden layers' forward pass on a CPU, at both sizes,
    beside this book's loop and its kernel, which does the input and the output layer as well. Each
    starts from the same states (D + 1, K, B, C), weight and bias.
    """
    for depth in (size.shallow, size.article.depth):
        shape = replace(size.article, depth=depth)
        net, whole = (network(shape, "numpy", "cpu", path=path) for path in ("layers", "kernel"))
        x, _ = a_batch(shape, net)
        rights = []
        for each in (net, whole):
            each.forward(x)
            p = each.parameters
            stack = each.states, p["hidden.weight"], p["hidden.bias"]
            exact = [array.astype(float) for array in stack]
            layout.forward(*exact, U0)
            rights.append(exact[0][1:])
        stack = net.states, *stack[1:]
        # One network of the K: x (B, C), weight (D, C, C), bias (D, 1, C).
        one = stack[0][0, 0], stack[1][:, 0], stack[2][:, 0]
        ways = {
            "loop over layers": partial(layout.forward, *stack, U0),
            "torch.compile": of_compile(*one),
            "jax.lax.scan": of_jax(*one),
            "kernel": partial(whole.forward, x),
        }
        # Ours leave the states in the network; the compilers' calls return them.
        kept = {"kernel": whole, "loop over layers": net}
        errors = {}
        for how, call in ways.items():
            answers = call()
            right = rights[how == "kernel"]
            found = kept[how].states[1:] if how in kept else np.asarray(answers)
            errors[how] = float(np.abs(found.reshape(right.shape) - right).max())
        # The bytes and FLOPs of these layers alone.
        states, weights = stack[0].size, stack[1].size
        cost = 4 * (states + weights), 2 * shape.batch * weights
        versions = [
            version(shape, "", "forward", how, call, errors[how], cost=cost)
            for how, call in ways.items()
        ]
        yield from measure(versions, "cpu", size.seconds)


def of_compile(x, weight, bias):
    """A call of what torch.compile makes, for the threads that PyTorch has now → (D, B, C)."""
    x, weight, bias = map(torch.as_tensor, (x, weight, bias))
    torch.compiler.reset()

    # (B, C), (n, C, C), (n, 1, C) → (n, B, C)
    @partial(torch.compile, options={"cpp.threads": torch.get_num_threads()})
    def block(x, weight, bias):
        answers = [x]
        for w, b in zip(weight, bias, strict=True):
            answers.append(torch.sigmoid(2 / U0 * (answers[-1] @ w + b)))
        return torch.stack(answers[1:])

    def forward():
        answers = torch.empty(len(weight), *x.shape)
        for part in (slice(start, start + BLOCK) for start in range(0, len(weight), BLOCK)):
            below = answers[part.start - 1] if part.start else x
            answers[part] = block(below, weight[part], bias[part])
        return answers

    return forward


def of_jax(*stack):
    """A call of what JAX's jit makes of a ``lax.scan`` → (D, B, C)."""
    import jax

    @jax.jit
    def walk(x, weight, bias):
        def layer(x, stack):
            y = jax.nn.sigmoid(2 / U0 * (x @ stack[0] + stack[1]))
            return y, y

        return jax.lax.scan(layer, x, (weight, bias))[1]

    given = [jax.numpy.asarray(array) for array in stack]
    return lambda: walk(*given).block_until_ready()


@functools.cache
def reference(shape):
    """The output and the hidden weights after one step in float64, by NumPy."""
    net = network(shape, "numpy", "cpu", "float64", alpha=ALPHA, path="layers")
    return net.step(*a_batch(shape, net)), net.state_dict()["hidden.weight"]


def deviation(shape, *found):
    """The largest, of an output and of a hidden weight, from the reference."""
    pairs = zip(map(to_numpy, found), reference(replace(shape, itemsize=8)), strict=True)
    return max(float(np.abs(mine.reshape(right.shape) - right).max()) for mine, right in pairs)


def network(shape, library, device, dtype="float32", alpha=NEARLY_0, **options):
    sizes = shape.n_inputs, shape.width, shape.depth, shape.n_outputs
    return EDNetwork(
        *sizes, **START, alpha=alpha, dtype=dtype, backend=library, device=device, **options
    )


def a_batch(shape, net):
    """x (B, n_inputs) and target (B, K), the same for all, in the network's library."""
    rng = np.random.default_rng(1)
    x = rng.random((shape.batch, shape.n_inputs))
    target = rng.integers(0, 2, (shape.batch, shape.n_outputs))
    return net.asarray(x), net.asarray(target)


TABLES = {"paths": paths, "article": articles_formulas, "by hand": by_hand, "autograd": autograd,
          "compilers": compilers}  # fmt: skip
TABLES = {name: by_threads(table) for name, table in TABLES.items()}
TIMED = True
ON_GPU = "paths", "article", "by hand"
