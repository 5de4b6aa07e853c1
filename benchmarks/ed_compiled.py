"""ED's hidden layers as compilers make them for a CPU: torch.compile, and JAX's jit over ``lax.scan``.

The forward pass and the update of the hidden layers, in float32, beside this book's loop and its kernel, on
the same arrays and in turns. Each way makes of states, weight, bias and a step ``forward``, which returns the
states; ``update``, which changes copies of the weights; and what returns these.
"""

from dataclasses import asdict
from functools import partial

import numpy as np
import torch

from benchmarks.harness import Version, measure
from ed_lib.ed import layout, network

U0 = 0.4
BLOCK = 16  # layers that torch.compile is shown at a time: it unrolls the loop over them
STEP = 1e-12  # α d / B, so small that repetitions leave the weights as they are; to be checked it is 1


def rows(net, shape, tolerance, seconds):
    """A row for each what and how. net: an EDNetwork in NumPy that has run once."""
    stack = net.states, net.parameters["hidden.weight"], net.parameters["hidden.bias"]
    exact = [array.astype(float) for array in stack]
    layout.forward(*exact, U0)
    change = np.zeros_like(exact[1])
    layout.update(change, np.zeros_like(exact[2]), exact[0], *gains(exact[0], 1.0))
    bytes, flops = 4 * (exact[0].size + exact[1].size), 2 * shape.batch * exact[1].size
    cost = {"forward": (bytes, flops), "update": (bytes + 4 * exact[1].size, flops)}
    ways = {"loop over layers": partial(of_module, layout), "torch.compile": of_compile,
            "jax.lax.scan": of_jax, "kernel": partial(of_module, network.kernels(net.space))}  # fmt: skip
    errors = {how: deviations(make, stack, exact, change) for how, make in ways.items()}
    calls = {how: dict(zip(cost, make(*stack, STEP), strict=False)) for how, make in ways.items()}
    case = {"library": "", "dtype": "float32"} | asdict(shape)
    del case["itemsize"]
    for what in cost:
        yield from measure([
            Version(case | {"what": what, "how": how}, calls[how][what], cost[what], error[what], tolerance)
            for how, error in errors.items()
        ], "cpu", seconds)  # fmt: skip


def deviations(make, stack, exact, change):
    """The largest of a state, and of a weight's change relative to the largest change, from float64."""
    forward, update, weight = make(*stack, 1.0)
    found = {"forward": np.asarray(forward()).reshape(exact[0].shape) - exact[0]}
    update()
    found["update"] = (np.asarray(weight()).reshape(change.shape) - exact[1] - change) / np.abs(change).max()
    return {what: float(np.abs(error).max()) for what, error in found.items()}


def gains(states, step):
    """The signed rule's, with the same error for all samples: (1, 2, B) and for the bias (1, 1, B)."""
    one = states[0, :, :, 0] * 0 + step  # (1, B)
    return np.stack([one, one], 1), one[:, None]


def of_module(module, states, weight, bias, step):
    """By a module's ``forward`` and ``update``."""
    states, weight, bias = (array + 0 for array in (states, weight, bias))

    def forward():
        module.forward(states, weight, bias, U0)
        return states

    return forward, partial(module.update, weight, bias, states, *gains(states, step)), lambda: weight


def block(x, weight, bias):
    """Some layers, one after another: x (B, C), weight (n, C, C), bias (n, 1, C) → (n, B, C)."""
    answers = [x]
    for w, b in zip(weight, bias, strict=True):
        answers.append(torch.sigmoid(2 / U0 * (answers[-1] @ w + b)))
    return torch.stack(answers[1:])


def update_all(weight, bias, states, step):
    """All layers at once, in place: weight (D, C, C), bias (D, 1, C), states (D + 1, B, C)."""
    y = states[1:]
    ones = y.new_ones(y.shape[-1] // 2)
    received = step * torch.cat([ones, -ones]) * y * (1 - y)
    weight += states[:-1].mT @ received
    bias += received.sum(1, keepdim=True)


def of_compile(states, weight, bias, step):
    """By torch.compile."""
    states, weight, bias = (torch.as_tensor(array)[:, 0].clone() for array in (states, weight, bias))
    layers, update = torch.compile(block), torch.compile(update_all)

    def forward():
        for start in range(0, len(weight), BLOCK):
            part = slice(start, start + BLOCK)
            states[1:][part] = layers(states[start], weight[part], bias[part])
        return states

    return forward, partial(update, weight, bias, states, step), lambda: weight


def of_jax(states, weight, bias, step):
    """By JAX."""
    import jax
    import jax.numpy as jnp

    states, weight, bias = (jnp.asarray(array[:, 0]) for array in (states, weight, bias))
    kept = [weight + 0, bias + 0]

    @jax.jit
    def walk(x, weight, bias):
        def layer(x, stack):
            y = jax.nn.sigmoid(2 / U0 * (x @ stack[0] + stack[1]))
            return y, y

        return jax.lax.scan(layer, x, (weight, bias))[1]  # (D, B, C)

    @partial(jax.jit, donate_argnums=(0, 1))
    def learn(weight, bias, states):
        y = states[1:]
        received = step * jnp.repeat(jnp.array([1.0, -1.0]), y.shape[-1] // 2) * y * (1 - y)
        change = jnp.einsum("dbi,dbo->dio", states[:-1], received, precision="highest")
        return weight + change, bias + received.sum(1, keepdims=True)

    def forward():
        return jnp.concatenate([states[:1], walk(states[0], weight, bias).block_until_ready()])

    def update():
        kept[:] = learn(*kept, states)
        kept[0].block_until_ready()

    return forward, update, lambda: kept[0]
