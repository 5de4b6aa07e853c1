"""The training loop against a loop written out, with and without a scaler."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ed_lib import data, models, training


@pytest.fixture(scope="module")
def digits():
    found = data.load()
    test = data.tensors(found.test_images[:360], found.test_labels[:360])
    return *data.tensors(found.train_images[:203], found.train_labels[:203]), test


def flat_mlp(seed=0):
    return nn.Sequential(nn.Flatten(), models.mlp((784, 16, 10), seed))


def squares(scores, labels):
    return (scores - F.one_hot(labels, 10)).square().mean()


@pytest.mark.oracle
@pytest.mark.parametrize(
    "loss_function, scaled", [(F.cross_entropy, False), (squares, False), (F.cross_entropy, True)]
)
def test_training_is_the_loop_written_out_with_autocast_and_a_scaler_too(
    digits, loss_function, scaled
):
    """As torch's documentation has it; the scale begins so high that it overflows at first."""
    x, y, test = digits
    ours, same, entered, losses, scales = flat_mlp(), flat_mlp(), [], [], []
    mine, yours = (
        torch.amp.GradScaler("cpu", 2.0**24, growth_interval=3, enabled=scaled) for _ in range(2)
    )

    def low():
        entered.append(1)
        return torch.autocast("cpu", torch.float16, enabled=scaled)

    optimizer = torch.optim.SGD(ours.parameters(), 0.1, momentum=0.9)
    options = {"context": low, "scaler": mine} if scaled else {}
    options |= {"loss_function": loss_function, "epochs": 2, "batch": 50, "seed": 3}
    history = training.train(ours, optimizer, x, y, test, **options)
    assert (
        len(entered) == (2 * 5 + 3) * scaled
    )  # steps, and the accuracy before and after each epoch
    optimizer = torch.optim.SGD(same.parameters(), 0.1, momentum=0.9)
    for rows in (rows for epoch in range(2) for rows in data.batches(203, 50, seed=3000 + epoch)):
        optimizer.zero_grad()
        with low():
            loss = loss_function(same(x[rows]), y[rows])
        yours.scale(loss).backward()
        yours.step(optimizer)
        yours.update()
        scales.append(yours.get_scale())
        losses.append(loss.item())
    assert history.loss == losses and len(losses) == 2 * 5 and ours.training
    assert mine.state_dict() == yours.state_dict() and (len(set(scales)) > 1) == scaled
    assert all(torch.equal(p, q) for p, q in zip(ours.parameters(), same.parameters(), strict=True))
    with low():
        right = (same(test[0]).argmax(1) == test[1]).double().mean().item()
    assert (
        history.accuracy[-1] == pytest.approx(right)
        and len(history.accuracy) == len(history.seconds) == 3
    )
    assert all(seconds > 0 for seconds in history.seconds[1:])


@pytest.mark.parametrize("n", [3, 1000, 1001])
def test_the_accuracy_is_the_share_of_labels_that_have_the_largest_score(n):
    """1 / 3, by a loop; in chunks as well."""
    scores = torch.eye(3)[torch.arange(n) % 3]
    labels = torch.zeros(n).long()
    right = sum(max(range(3), key=row.__getitem__) == 0 for row in scores.tolist())
    assert training.accuracy(nn.Identity(), scores, labels) == pytest.approx(right / n)
    assert right / n == pytest.approx(1 / 3, abs=0.001)


@pytest.mark.parametrize("mode", [True, False])
def test_a_model_keeps_its_mode_when_its_accuracy_is_refused(mode):
    net = nn.Flatten(0).train(mode)
    with pytest.raises(ValueError, match="what model gives"):
        training.accuracy(net, torch.eye(3), torch.zeros(3).long())
    assert net.training == mode


def test_a_look_that_counts_as_false_is_looked_with():
    class Empty(list):
        def __call__(self):
            return 0.25

    history = training.loop(lambda rows: 0.0, 4, Empty(), batch=2)
    assert history.accuracy == [0.25, 0.25]


@pytest.mark.oracle
def test_a_tasks_gradient_is_that_of_pytorchs_own_layers_on_its_batch():
    draw = np.random.default_rng(1)
    images, labels = draw.random((97, 13)), draw.integers(10, size=97)
    gradients = training.TaskGradients(images, labels, hidden=7, batch=5, seed=3)
    net = nn.Sequential(nn.Linear(13, 7), nn.ReLU(), nn.Linear(7, 10)).double()
    nn.utils.vector_to_parameters(gradients.start(), net.parameters())
    rows = np.random.default_rng((3, 4)).integers(97, size=5)
    loss = F.cross_entropy(net(torch.tensor(images[rows])), torch.tensor(labels[rows]))
    loss.backward()
    gradient, found = gradients(gradients.start(), 4)
    assert found == pytest.approx(loss.item(), rel=1e-14)
    wanted = nn.utils.parameters_to_vector([p.grad for p in net.parameters()])
    torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-15)
    # weights and biases are drawn up to 1 / √(inputs), as nn.Linear draws them
    inputs = (13, 13, 7, 7)
    reached = [p.abs().max() * n**0.5 for p, n in zip(net.parameters(), inputs, strict=True)]
    assert 0.9 < max(reached) <= 1


def test_a_task_needs_a_label_for_each_image():
    with pytest.raises(
        ValueError, match="there are 3 images and 2 labels; wanted a label for each"
    ):
        training.TaskGradients(np.ones((3, 2)), [0, 1])
