"""ED's hidden layers as today's compilers make them: torch.compile, and JAX's jit over ``lax.scan``.

The forward pass and the update of the hidden layers, in float32, beside this book's loop and its kernel, on
the same arrays and in turns. One network, the signed rule, free biases.
"""

import dataclasses
import os
from functools import partial

import numpy as np
import torch

from benchmarks.old_harness import Version
from ed_lib import arrays, devices
from ed_lib.ed import layout, network

U0 = 0.4
BLOCK = 16  # layers that torch.compile is shown at a time: it unrolls the loop over them
STEP = 1e-12  # α d / B, so small that repetitions leave the weights as they are; to be checked it is 1


def measure(table, net, shape, tolerance):
    """{table: "compilers", what, how} → rows. net: an EDNetwork that has run once; NumPy or PyTorch."""
    stack = net.states, net.parameters["hidden.weight"], net.parameters["hidden.bias"]
    exact = [arrays.to_numpy(array).astype(float) for array in stack]
    layout.forward(*exact, U0)
    right = {"forward": exact[0], "update": np.zeros_like(exact[1])}
    layout.update(right["update"], np.zeros_like(exact[2]), exact[0], *gains(exact[0], 1.0))
    numbers = exact[0].size + exact[1].size
    cost = {"forward": (4 * numbers, 2 * shape.batch * exact[1].size)}
    cost["update"] = cost["forward"][0] + 4 * exact[1].size, cost["forward"][1]
    sizes = {key: value for key, value in dataclasses.asdict(shape).items() if key != "itemsize"}
    for what in cost:
        versions = []
        for how, make in {**of_torch(net), "jax.lax.scan": of_jax}.items():
            case = {"table": "compilers", "library": "", "dtype": "float32", "what": what, "how": how} | sizes
            try:
                error = deviation(make, stack, exact, right, what)
                call = make(*stack, STEP)[what == "update"]
                call()
            except Exception as problem:  # of a compiler, a driver, or a library that is missing
                print(f"{what}, {how}: left out, {problem!r:.200}")
                continue
            versions.append(Version(case, call, cost[what], error, tolerance))
        table.measure(versions)


def deviation(make, stack, exact, right, what):
    """The largest of a state, or of a weight's change relative to the largest change, from float64."""
    forward, update, weight = make(*stack, 1.0)
    found = arrays.to_numpy(forward()).reshape(exact[0].shape)
    if what == "update":
        update()
        found = arrays.to_numpy(weight()).reshape(exact[1].shape) - exact[1]
    return float(np.abs(found - right[what]).max() / np.abs(right[what]).max())


def of_torch(net):
    """{how: a function of states, weight, bias and a step}, for arrays of NumPy or PyTorch, that gives three:
    forward, which returns the states; update, which changes copies of the weights; and what returns these.
    """
    found = {"loop over layers": of_loop, "torch.compile": of_compile}
    if network.obstacle("kernel", net.space, net.width) is None:
        found["kernel"] = partial(of_kernel, network.kernels(net.space))
    if net.space.is_gpu:
        found["loop, graph"] = partial(as_graph, of_loop)
        found["torch.compile, graph"] = partial(as_graph, of_compile)
    return found


def gains(states, step):
    """The signed rule's, with the same error for all samples: (1, 2, B) and for the bias (1, 1, B)."""
    one = states[0, :, :, 0] * 0 + step  # (1, B)
    return arrays.library(states).stack([one, one], 1), one[:, None]


def of_loop(states, weight, bias, step):
    states, weight, bias = (array + 0 for array in (states, weight, bias))

    def forward():
        layout.forward(states, weight, bias, U0)
        return states

    return forward, partial(layout.update, weight, bias, states, *gains(states, step)), lambda: weight


def of_kernel(kernels, states, weight, bias, step):
    states, weight, bias = (array + 0 for array in (states, weight, bias))

    def forward():
        kernels.forward(states, weight, bias, U0)
        return states

    update = partial(kernels.update, weight, bias, states, *gains(states, step))
    return forward, update, lambda: weight


def block(x, weight, bias):
    """Some layers, one after another: x (B, C), weight (n, C, C), bias (n, 1, C) → (n, B, C)."""
    answers = []
    for w, b in zip(weight, bias, strict=True):
        x = torch.sigmoid(2 / U0 * (x @ w + b))
        answers.append(x)
    return torch.stack(answers)


def update_all(weight, bias, states, step):
    """All layers at once, in place: weight (D, C, C), bias (D, 1, C), states (D + 1, B, C)."""
    x, y = states[:-1], states[1:]
    half = y.shape[-1] // 2
    sign = torch.cat([y.new_ones(half), -y.new_ones(half)])
    received = step * sign * y * (1 - y)
    weight += x.mT @ received
    bias += received.sum(1, keepdim=True)


def of_compile(states, weight, bias, step):
    states, weight, bias = (torch.as_tensor(array)[:, 0].clone() for array in (states, weight, bias))
    layers, update = torch.compile(block), torch.compile(update_all)

    def forward():
        for start in range(0, len(weight), BLOCK):
            part = slice(start, start + BLOCK)
            states[1:][part] = layers(states[start], weight[part], bias[part])
        return states

    return forward, partial(update, weight, bias, states, step), lambda: weight


def as_graph(make, states, weight, bias, step):
    """Both calls recorded as CUDA graphs; what forward returns is where the graph writes."""
    forward, _, _ = make(states, weight, bias, step)
    before, update, changed = make(states, weight, bias, step)  # of its own: recording an update changes it
    before()  # what the update reads
    answers, start = forward(), changed() + 0
    of_forward, of_update = (devices.record(call, states) for call in (forward, update))
    changed().copy_(start)

    def replayed():
        of_forward()
        return answers

    return replayed, of_update, changed


def of_jax(states, weight, bias, step):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch uses the same GPU
    import jax
    import jax.numpy as jnp

    states, weight, bias = (jnp.asarray(arrays.to_numpy(array)[:, 0]) for array in (states, weight, bias))

    @jax.jit
    def walk(x, weight, bias):
        def layer(x, stack):
            y = jax.nn.sigmoid(2 / U0 * (x @ stack[0] + stack[1]))
            return y, y

        return jax.lax.scan(layer, x, (weight, bias))[1]  # (D, B, C)

    @partial(jax.jit, donate_argnums=(0, 1))
    def learn(weight, bias, states):
        x, y = states[:-1], states[1:]
        sign = jnp.repeat(jnp.array([1.0, -1.0]), y.shape[-1] // 2)
        received = step * sign * y * (1 - y)
        change = jnp.einsum("dbi,dbo->dio", x, received, precision="highest")
        return weight + change, bias + received.sum(1, keepdims=True)

    def forward():
        return jnp.concatenate([states[:1], walk(states[0], weight, bias).block_until_ready()])

    kept = [weight + 0, bias + 0]

    def update():
        kept[:] = learn(*kept, states)
        kept[0].block_until_ready()

    return forward, update, lambda: kept[0]
