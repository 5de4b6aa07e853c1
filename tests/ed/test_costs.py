"""The counts against arrays of those shapes, and against the figures of the source article's
size.
"""

import math

import numpy as np
import pytest

from ed_lib.ed import EDNetwork, costs


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
def test_the_articles_size():
    article = costs.Shape(n_inputs=784, width=32, depth=4096, batch=64, itemsize=8)
    assert costs.batch_axis(article) == 8 * 2**30  # 8 GiB
    assert article.hidden_weights * 8 == 2**27  # 134 MB
    bytes_, flops = costs.update_cost(article)
    # 403 MB and 2.15 GFLOP without the input and the output layer
    assert round(bytes_ / 1e6) == 404 and round(flops / 1e9, 2) == 2.16
    assert costs.step_cost(article)[0] == bytes_ + costs.forward_cost(article)[0]
