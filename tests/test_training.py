"""The training loop against a loop written out, with and without a scaler."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ed_lib import data, models, training


@pytest.fixture(scope="module")
def digits():
    found = data.load(offline=True)
    test = data.tensors(found.test_images, found.test_labels)
    return *data.tensors(found.train_images[:203], found.train_labels[:203]), test


def flat_mlp(seed=0):
    return nn.Sequential(nn.Flatten(), models.mlp((784, 16, 10), seed))


def squares(scores, labels):
    return (scores - F.one_hot(labels, 10)).square().mean()


@pytest.mark.oracle
@pytest.mark.parametrize("loss_function", [F.cross_entropy, squares])
def test_training_is_the_loop_written_out(digits, loss_function):
    x, y, test = digits
    ours, same = flat_mlp(), flat_mlp()
    optimizer, options = torch.optim.SGD(ours.parameters(), 0.1, momentum=0.9), {"epochs": 2, "batch": 50}
    history = training.train(ours, optimizer, x, y, test, seed=3, loss_function=loss_function, **options)
    optimizer, losses = torch.optim.SGD(same.parameters(), 0.1, momentum=0.9), []
    for epoch in range(2):
        for rows in data.batches(203, 50, seed=3000 + epoch):
            loss = loss_function(same(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert history.loss == losses and len(losses) == 2 * 5 and ours.training
    assert all(torch.equal(p, q) for p, q in zip(ours.parameters(), same.parameters(), strict=True))
    right = (same(test[0]).argmax(1) == test[1]).double().mean().item()
    assert history.accuracy[-1] == pytest.approx(right) and len(history.accuracy) == len(history.seconds) == 3
    assert all(seconds > 0 for seconds in history.seconds[1:])


@pytest.mark.oracle
def test_with_autocast_and_a_scaler_it_is_the_loop_in_torchs_documentation(digits):
    x, y, test = digits
    ours, same, entered = flat_mlp(), flat_mlp(), []

    def low():
        entered.append(1)
        return torch.autocast("cpu", torch.float16)

    def scaler():  # from so high that it overflows at first
        return torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)

    mine, yours = scaler(), scaler()
    optimizer = torch.optim.SGD(ours.parameters(), 0.1)
    training.train(ours, optimizer, x, y, test, epochs=1, batch=40, context=low, scaler=mine)
    assert len(entered) == 6 + 2  # steps, and the accuracy before and after
    optimizer, scales = torch.optim.SGD(same.parameters(), 0.1), []
    for rows in data.batches(203, 40, seed=0):
        optimizer.zero_grad()
        with low():
            loss = F.cross_entropy(same(x[rows]), y[rows])
        yours.scale(loss).backward()
        yours.step(optimizer)
        yours.update()
        scales.append(yours.get_scale())
    assert mine.state_dict() == yours.state_dict() and len(set(scales)) > 1
    assert all(torch.equal(p, q) for p, q in zip(ours.parameters(), same.parameters(), strict=True))
