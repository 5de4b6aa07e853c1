"""Kaneko's figures for XOR, and training on images."""

import numpy as np
import pytest

from ed_lib import data
from ed_lib.ed import EDNetwork, learner

XOR_1999 = {8: 75.14, 16: 28.00, 32: 8.26, 64: 5.97, 128: 5.09, 256: 4.62, 512: 4.47}  # Kaneko's page


@pytest.mark.oracle
def test_parity_is_in_kanekos_order():
    x, target = learner.parity(3)
    assert x.tolist()[:4] == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]] and x.shape == (8, 3)
    np.testing.assert_array_equal(target[:, 0], x.sum(axis=1) % 2)


@pytest.mark.oracle
@pytest.mark.parametrize("cells, published", XOR_1999.items())
def test_xor_takes_as_many_epochs_as_kaneko_published(cells, published):
    """His mean is over 100 starts, and so is ours: their difference has √2 of one mean's standard error."""
    nets = EDNetwork(2, cells // 2, 0, n_outputs=100, bias="cells", seed=1, dtype="float64")
    epochs = learner.epochs_to_solve(nets, *learner.parity(2))
    assert not np.isnan(epochs).any()
    assert abs(epochs.mean() - published) < 4 * np.sqrt(2) * epochs.std() / np.sqrt(100)


@pytest.mark.oracle
def test_epochs_are_counted_as_by_one_network_after_another():
    """Against plain steps of single networks, with the weights of each of three."""
    x, target = learner.parity(2)
    nets = EDNetwork(2, 8, 0, n_outputs=3, bias="cells", seed=4, dtype="float64")
    state, wanted = nets.state_dict(), []
    for k in range(3):
        net = EDNetwork(2, 8, 0, bias="cells", dtype="float64")
        net.load_state_dict(
            {n: w[:, k : k + 1] if n.startswith("hidden") else w[k : k + 1] for n, w in state.items()}
        )
        epoch, missed = 0, 1.0
        while missed >= 0.1:
            epoch, missed = epoch + 1, 0.0
            for n in range(4):
                missed += abs(target[n, 0] - net.step(x[n : n + 1], target[n : n + 1])[0, 0])
        wanted.append(epoch)
    assert learner.epochs_to_solve(nets, x, target).tolist() == wanted


def test_what_is_not_solved_in_time_is_nan():
    nets = EDNetwork(2, 4, 0, n_outputs=2, bias="cells")
    assert np.isnan(learner.epochs_to_solve(nets, *learner.parity(2), max_epochs=1)).all()


def test_training_on_images_learns_and_writes_down_how(capsys, backend):
    digits = data.load(offline=True)
    train = data.as_inputs(digits.train_images), digits.train_labels
    test = data.as_inputs(digits.test_images), digits.test_labels
    net = EDNetwork(784, 16, 0, 10, init="fan_in", alpha=0.05, **backend)
    history = learner.fit(net, train, test, epochs=6, every=40)
    assert history.seen[0] == 0 and history.seen[-1] == 6 * 1437 and history.seen[1] == 1437 + 17 * 64
    assert len(history.seen) == len(history.accuracy) == len(history.mean_losses()) + 1
    assert history.accuracy[-1] > 0.8 > 0.3 > history.accuracy[0]
    assert history.mean_losses()[-1] < history.mean_losses()[0]
    assert net.signs_hold()


def test_one_output_learns_the_label_itself(capsys):
    digits = data.load(offline=True)
    images, labels = data.pick(digits.train_images, digits.train_labels, [0, 1])
    few = data.as_inputs(images), labels
    net = EDNetwork(784, 8, 1, init="fan_in", alpha=0.2)
    assert learner.fit(net, few, few, epochs=20).accuracy[-1] > 0.99
    assert set(learner.predict(net, few[0])) == {0, 1}
