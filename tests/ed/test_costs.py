"""The counts against arrays of those shapes, and against the figures of the source article's
size.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ed_lib.ed import EDNetwork, costs, rivals


@pytest.mark.oracle
def test_the_counts_are_those_of_the_arrays():
    net = EDNetwork(5, 3, 4, 2)
    net.forward(np.ones((6, 5), np.float32))
    shape = costs.Shape(n_inputs=5, width=3, depth=4, batch=6, n_outputs=2)
    state = net.state_dict()
    assert shape.hidden_weights == state["hidden.weight"].size
    assert shape.weights == sum(value.size for name, value in state.items() if "weight" in name)
    assert shape.activations == net.states.size
    products = np.broadcast_shapes((4, 2, 1, 2, 6, 3, 1), (4, 2, 2, 1, 6, 1, 3))  # sent × received
    assert costs.batch_axis(shape) == 4 * math.prod(products)


@pytest.mark.oracle
def test_a_pass_more_is_what_autograd_computes_more():
    """PyTorch's own count, in what a hidden layer adds: the passes forward and backward, and the
    gradient by the weights. (The first layer differs: its input has no gradient.)
    """
    counted, ours = [], []
    for depth in (3, 4):
        net = EDNetwork(5, 3, depth, 2, backend="torch", path="layers")
        leaves = rivals.by_layer(net.parameters, lambda p: p.clone().requires_grad_())
        with FlopCounterMode(display=False) as counter:
            rivals.loss(leaves, net.u0, torch.ones(6, 5), torch.ones(6, 2)).backward()
        counted.append(counter.get_total_flops())
        shape = costs.Shape(n_inputs=5, width=3, depth=depth, batch=6, n_outputs=2)
        ours.append([costs.step_cost(shape, passes) for passes in (1, 2)])
    layer = counted[1] - counted[0]
    assert layer == 3 * (2 * 6 * 2 * 6 * 6)  # three products, B = 6, K = 2, 6 × 6 weights
    one, two = ([step[passes][1] for step in ours] for passes in (0, 1))
    assert two[1] - two[0] == layer and one[1] - one[0] == layer * 2 // 3


def test_the_bytes_of_a_step_are_those_of_its_passes_and_its_update():
    shape = costs.Shape(n_inputs=5, width=3, depth=4, batch=6, n_outputs=2)
    weights, activations = shape.weights, shape.activations
    assert costs.forward_cost(shape)[0] == 4 * (weights + activations)
    assert costs.update_cost(shape)[0] == 4 * (2 * weights + activations)
    assert costs.step_cost(shape)[0] == 4 * (3 * weights + 2 * activations)
    assert costs.step_cost(shape, passes=2)[0] == 4 * (4 * weights + 3 * activations)


@pytest.mark.oracle
def test_the_articles_size():
    article = costs.Shape(n_inputs=784, width=32, depth=4096, batch=64, itemsize=8)
    assert costs.batch_axis(article) == 8 * 2**30  # 8 GiB
    assert article.hidden_weights * 8 == 2**27  # 134 MB
    bytes_, flops = costs.update_cost(article)
    # 403 MB and 2.15 GFLOP without the input and the output layer
    assert round(bytes_ / 1e6) == 404 and round(flops / 1e9, 2) == 2.16
    assert costs.step_cost(article)[0] == bytes_ + costs.forward_cost(article)[0]


@pytest.mark.oracle
def test_the_operations_are_those_that_pytorch_counts():
    """Autograd of the same layers: its backward pass makes a second pass through the weights, and
    an update of them.
    """
    shape = costs.Shape(n_inputs=5, width=3, depth=4, batch=6, n_outputs=2)
    sizes = [2 * 5, *5 * [2 * 3], 2]  # pairs of cells: 2I, then 2W of each hidden layer, then 2
    y = torch.ones(2, 6, 2 * 5, requires_grad=True)  # (K, B, 2I)
    layers = [torch.ones(2, i, o, requires_grad=True) for i, o in itertools.pairwise(sizes)]
    with FlopCounterMode(display=False) as forward:
        for w in layers:
            y = y @ w
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    once, both = forward.get_total_flops(), backward.get_total_flops()
    assert costs.forward_cost(shape)[1] == once and 2 * costs.update_cost(shape)[1] == both
    assert costs.step_cost(shape)[1] == once + both // 2
    assert costs.step_cost(shape, passes=2)[1] == once + both


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bytes_are_those_of_the_arrays(dtype):
    net = EDNetwork(5, 3, 4, 2, dtype=dtype)
    net.forward(np.ones((6, 5), dtype))
    shape = costs.Shape(5, 3, 4, 6, 2, *([] if dtype == "float32" else [8]))
    w = sum(value.nbytes for name, value in net.state_dict().items() if "weight" in name)
    x = net.states.nbytes
    assert costs.forward_cost(shape)[0] == w + x  # read, written
    assert costs.update_cost(shape)[0] == x + w + w  # read, read, written
    assert costs.step_cost(shape)[0] == (w + x) + (x + w + w)
    assert costs.step_cost(shape, passes=2)[0] == 2 * (w + x) + (x + w + w)
