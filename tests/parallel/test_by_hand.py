"""LeNet on several devices against a network of torch's own layers, its optimizer, and d2l's functions."""

import numpy as np
import pytest
import torch

from ed_lib import data
from ed_lib.parallel import by_hand

RNG = np.random.default_rng(0)


@pytest.fixture
def d2l():
    try:
        from d2l import torch as d2l
    except Exception as error:  # it also fails when torchvision does not fit torch
        pytest.skip(f"d2l cannot be imported: {error}")
    return d2l


def torchs(params):
    """The same network, of torch's layers, with these parameters."""
    nn = torch.nn
    layers = nn.Conv2d(1, 20, 3), nn.Conv2d(20, 50, 5), nn.Linear(800, 128), nn.Linear(128, 10)
    with torch.no_grad():
        for layer, weight, bias in zip(layers, params[::2], params[1::2], strict=True):
            layer.weight = nn.Parameter(weight.T.clone() if weight.dim() == 2 else weight.clone())
            layer.bias = nn.Parameter(bias.clone())
    one, two, three, four = layers
    return nn.Sequential(
        one, nn.ReLU(), nn.AvgPool2d(2), two, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), three, nn.ReLU(), four
    )


def strong(seed, dtype=torch.float64):
    """Parameters that are large enough to learn from the first step."""
    return [8 * p + 0.01 for p in by_hand.init_params(seed, dtype)]


def batch(n, dtype=torch.float64):
    x, y = RNG.random((n, 1, 28, 28)), RNG.integers(0, 10, n)
    return torch.tensor(x, dtype=dtype), torch.tensor(y)


def reference(params, batches, lr):
    """The parameters after plain SGD on mean losses, by torch's own optimizer, in the layout of ours."""
    net = torchs(params)
    optimizer = torch.optim.SGD(net.parameters(), lr)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return [p.detach().T if p.dim() == 2 else p.detach() for p in net.parameters()]


def distance(some, others):
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in zip(some, others, strict=True))


@pytest.mark.oracle
def test_the_network_is_the_one_of_torchs_layers():
    params = strong(3)
    assert sum(p.numel() for p in params) == 129_068 and params[4].numel() == 102_400
    x, _ = batch(7)
    wanted = torchs(params)(x)
    np.testing.assert_allclose(by_hand.lenet(x, params), wanted.detach(), atol=1e-13)
    net = by_hand.LeNet(3, torch.float64)
    assert distance(net.parameters(), by_hand.init_params(3, torch.float64)) == 0
    np.testing.assert_array_equal(net(x).detach(), by_hand.lenet(x, by_hand.init_params(3, torch.float64)))


def test_the_start_is_small_and_depends_on_the_seed():
    params = by_hand.init_params(0)
    assert all((bias == 0).all() for bias in params[1::2])
    assert abs(torch.cat([w.flatten() for w in params[::2]]).std().item() - 0.01) < 1e-4
    assert distance(params, by_hand.init_params(0)) == 0 < distance(params, by_hand.init_params(1))


def test_copies_of_the_parameters_share_nothing(d2l):
    params = by_hand.init_params(0)
    one, two = (by_hand.get_params(params, "cpu") for _ in range(2))
    pointers = {p.data_ptr() for p in (*params, *one, *two)}
    assert len(pointers) == 24 and all(p.is_leaf and p.requires_grad for p in one)
    with torch.no_grad():
        for p in one:
            p += 1
    assert distance(params, two) == 0 and not any(p.requires_grad for p in params)
    assert params[0].to(d2l.try_gpu(5)) is params[0] or torch.cuda.is_available()  # why a copy is needed


@pytest.mark.oracle
@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(), (1,), (7, 3)])
def test_allreduce_is_the_sum_on_every_device(k, shape):
    tensors = [torch.tensor(RNG.integers(-99, 99, shape)).double() for _ in range(k)]
    wanted, places = torch.stack(tensors).sum(0), [t.data_ptr() for t in tensors]
    by_hand.allreduce(tensors)
    assert all(torch.equal(t, wanted) for t in tensors) and places == [t.data_ptr() for t in tensors]


@pytest.mark.oracle
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 2), (8, 4), (11, 4), (4, 4)])
def test_shards_are_the_batch_cut_as_torch_cuts_it(n, k):
    x, y = batch(n)
    xs, ys = by_hand.split_batch(x, y, ["cpu"] * k)
    assert torch.equal(torch.cat(xs), x) and torch.equal(torch.cat(ys), y)
    assert [len(s) for s in xs] == [len(s) for s in ys] == [len(s) for s in x.tensor_split(k)]


@pytest.mark.oracle
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_a_step_on_k_devices_is_the_step_on_the_whole_batch(k):
    batches, params = [batch(n) for n in (11, 13, 9)], strong(1)  # uneven for k = 2, 3, 4 but once
    copies = [by_hand.get_params(params, "cpu") for _ in range(k)]
    for x, y in batches:
        before = torchs([p.detach() for p in copies[0]])(x)
        loss = by_hand.train_batch(x, y, copies, ["cpu"] * k, 0.3)
        assert abs(loss - torch.nn.functional.cross_entropy(before, y)) < 1e-12
    wanted = reference(params, batches, 0.3)
    assert distance(params, wanted) > 0.01
    for copy in copies:
        assert distance(copy, wanted) < 1e-12 and distance(copy, copies[0]) == 0


@pytest.mark.oracle
def test_sgd_and_accuracy_are_d2ls(d2l):
    params, (x, y) = strong(2, torch.float32), batch(25, torch.float32)
    ours, theirs = (by_hand.get_params(params, "cpu") for _ in range(2))
    for copy, sgd in ((ours, by_hand.sgd), (theirs, d2l.sgd)):
        torch.nn.functional.cross_entropy(by_hand.lenet(x, copy), y, reduction="sum").backward()
        sgd(copy, 0.1, 25)
    assert distance(ours, theirs) == 0 < distance(ours, params)
    assert all((p.grad == 0).all() for p in ours)
    shown = d2l.evaluate_accuracy_gpu(lambda x: by_hand.lenet(x, theirs), [(x[:9], y[:9]), (x[9:], y[9:])])
    assert by_hand.accuracy(x, y, [ours] * 3, ["cpu"] * 3) == shown


@pytest.mark.oracle
@pytest.mark.parametrize("k", [1, 3])
def test_a_run_is_serial_sgd_also_in_its_uneven_last_batch(k):
    (x, y), test = batch(29), batch(7)
    history = by_hand.train(["cpu"] * k, 12, 0.05, 2, x, y, test, seed=4)
    order = [np.random.default_rng(4000 + epoch).permutation(29) for epoch in range(2)]
    rows = [part for each in order for part in (each[:12], each[12:24], each[24:])]
    wanted = reference(by_hand.init_params(4, torch.float64), [(x[r], y[r]) for r in rows], 0.05)
    assert distance(history.params, wanted) < 1e-12
    assert len(history.loss) == 6 and history.steps == [0, 3, 6] and len(history.accuracy) == 3
    assert min(history.seconds[1:]) > 0
    right = torchs(wanted)(test[0]).argmax(dim=1) == test[1]
    assert history.accuracy[-1] == right.sum().item() / 7


@pytest.mark.oracle
def test_tensors_of_images():
    images = RNG.integers(0, 256, (3, 28, 28)).astype(np.uint8)
    x, y = data.tensors(images, np.array([1, 2, 3], np.uint8))
    np.testing.assert_array_equal(x[:, 0], (images / np.float32(255)))
    assert x.shape == (3, 1, 28, 28) and y.dtype == torch.int64 and x.dtype == torch.float32
