"""What a watched step has called, moved and held, beside sums made by hand and beside PyTorch's
profiler.
"""

import gc
import weakref
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from ed_lib import machine
from ed_lib.diagnose import watching

F4, I8 = 4, 8  # bytes of a number in float32, of an index
# A loss is one number. The gradient of a sum is one as well, expanded; it is made before the backward
# pass begins.
ONE = 1


def step_of(model, x, loss=torch.sum, kind=torch.optim.SGD, **options):
    optimizer = kind(model.parameters(), lr=0.01, **options)

    def step():
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()

    return step


def bytes_of(step):
    """{phase: bytes} of the second step, when the optimizer has its state."""
    step()
    found = Counter()
    for call in watching.watch(step):
        found[call.phase] += call.bytes
    return dict(found)


def floats(numbers):
    return F4 * sum(numbers.values())


@pytest.mark.oracle
def test_bytes_of_an_mlp():
    rows, inputs, hidden, outputs = 8, 20, 30, 5
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
    x, h, y = rows * inputs, rows * hidden, rows * outputs
    w1, w2, b1, b2 = inputs * hidden, hidden * outputs, hidden, outputs
    forward = {
        "layer 1": (x + w1 + b1) + h,
        "ReLU": h + h,
        "layer 2": (h + w2 + b2) + y,
        "sum, and its gradient": (y + ONE) + ONE,
    }
    backward = {
        "dW2": (ONE + h) + w2,
        "db2": ONE + b2,
        "dh": (ONE + w2) + h,
        "ReLU": (h + h) + h,
        "dW1": (h + x) + w1,
        "db1": h + b1,
    }
    optimizer = {name: 3 * p for name, p in {"W1": w1, "W2": w2, "b1": b1, "b2": b2}.items()}
    assert bytes_of(step_of(model, torch.ones(rows, inputs))) == {
        "forward": floats(forward),
        "backward": floats(backward),
        "optimizer": floats(optimizer),
    }


@pytest.mark.oracle
def test_bytes_of_an_embedding_are_its_rows_until_the_optimizer_comes():
    words, width, outputs, tokens = 1000, 6, 3, 5
    model = nn.Sequential(nn.Embedding(words, width), nn.Linear(width, outputs, bias=False))
    table, w, rows, y = words * width, width * outputs, tokens * width, tokens * outputs
    forward = {
        "rows": rows + rows,
        "product": (rows + w) + y,
        "sum, and its gradient": (y + ONE) + ONE,
    }
    backward = {
        "dW": (ONE + rows) + w,
        "d rows": (ONE + w) + rows,
        "d table": rows + table,
    }
    optimizer = {"table": 3 * table, "W": 3 * w}
    indices = tokens * I8
    assert bytes_of(step_of(model, torch.arange(tokens))) == {
        "forward": floats(forward) + indices,
        "backward": floats(backward) + indices,
        "optimizer": floats(optimizer),
    }


@pytest.mark.oracle
def test_bytes_of_a_convolution():
    images, height, kernel, channels = 2, 8, 3, 4
    model = nn.Sequential(nn.Conv2d(3, channels, kernel), nn.Sigmoid())
    x, y = images * 3 * height**2, images * channels * (height - kernel + 1) ** 2
    w, b = channels * 3 * kernel**2, channels
    forward = {
        "convolution": (x + w + b) + y,
        "sigmoid": y + y,
        "sum, and its gradient": (y + ONE) + ONE,
    }
    backward = {
        "sigmoid": (ONE + y) + y,
        "convolution": (y + x + w) + (w + b),
    }
    assert bytes_of(step_of(model, torch.ones(images, 3, height, height))) == {
        "forward": floats(forward),
        "backward": floats(backward),
        "optimizer": floats({"w": 3 * w, "b": 3 * b}),
    }


class Chain(nn.Module):
    """sigmoid(2 x + b), the last two in place, with a row that is broadcast."""

    def __init__(self, rows, width):
        super().__init__()
        self.x = nn.Parameter(torch.ones(rows, width))
        self.row = nn.Parameter(torch.ones(width))

    def forward(self, factor):
        y = self.x * factor
        y.add_(self.row)
        return y.sigmoid_()


@pytest.mark.oracle
def test_bytes_of_a_chain_with_a_broadcast_and_in_place():
    rows, width = 7, 5
    x, row = rows * width, width
    forward = {
        "mul": x + x,
        "add_": (x + row) + x,
        "sigmoid_": x + x,
        "sum, and its gradient": (x + ONE) + ONE,
    }
    backward = {
        "sigmoid": (ONE + x) + x,
        "d row": x + row,
        "dx": x + x,
    }
    # Momentum: the buffer is scaled in place, the gradient added; then the parameter is stepped.
    optimizer = {"scale": 2 * (x + row), "add": 3 * (x + row), "step": 3 * (x + row)}
    assert bytes_of(step_of(Chain(rows, width), 2.0, momentum=0.9)) == {
        "forward": floats(forward),
        "backward": floats(backward),
        "optimizer": floats(optimizer),
    }


# What has a kernel of its own, and neither makes memory only nor a view.
VIEWS = """t transpose permute view _unsafe_view _reshape_alias expand detach detach_ alias select
    slice split unbind unsqueeze squeeze as_strided lift_fresh""".split()
MEMORY = "empty empty_like empty_strided".split()
NAMES = defaultdict(list)
for each in torch._C._dispatch_get_all_op_names():
    NAMES[each.partition(".")[0]].append(each)


def is_kernel(event):
    """Whether it is an operator that no other operators make up."""
    key = "CompositeImplicitAutograd"
    names = NAMES.get(event.name, [])
    return names and not any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for name in names
    )


def profiled(step):
    """{operator: calls} by the profiler, without those inside another operator's kernel."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    found = Counter()
    for event in profiler.events():
        name = event.name.removeprefix("aten::")
        if is_kernel(event) and name not in VIEWS + MEMORY and not inside_a_kernel(event):
            # A sum of gradients is made in place where nobody else holds them, as a watcher does.
            found[name.rstrip("_")] += 1
    return found


def inside_a_kernel(event):
    while (event := event.cpu_parent) is not None:
        if is_kernel(event):
            return True
    return False


def convolutional():
    layers = [nn.Conv2d(1, 6, 5), nn.BatchNorm2d(6), nn.Sigmoid(), nn.MaxPool2d(2), nn.Dropout()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(864, 10))
    return step_of(
        model,
        torch.ones(4, 1, 28, 28),
        loss=lambda out: functional.cross_entropy(out, torch.arange(4)),
        kind=torch.optim.AdamW,
        foreach=True,
    )


STEPS = {
    "MLP, Adam": lambda: step_of(
        nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Dropout(), nn.Linear(30, 5)),
        torch.ones(8, 20),
        kind=torch.optim.Adam,
    ),
    "convolutions, AdamW": convolutional,
    "encoder, fused Adam": lambda: step_of(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1),
        torch.ones(3, 7, 16),
        kind=torch.optim.Adam,
        fused=True,
    ),
}


@pytest.mark.oracle
@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_the_calls_are_the_profilers(make, monkeypatch):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")
    step = make()
    step()
    calls = watching.watch(step)
    assert Counter(call.operator.rstrip("_") for call in calls) == profiled(step)


def test_phases_and_places():
    model = nn.Linear(3, 2)
    step = step_of(model, torch.ones(4, 3))
    calls = watching.watch(step)
    assert [(call.phase, call.operator) for call in calls] == [
        ("forward", "addmm"),
        ("forward", "sum"),
        ("forward", "ones_like"),
        ("backward", "mm"),
        ("backward", "sum"),
        ("optimizer", "add_"),
        ("optimizer", "add_"),
    ]
    line = step.__code__.co_firstlineno
    lines = [int(call.place.removeprefix("test_watching.py:")) - line for call in calls]
    assert lines == [2, 2, 2, 2, 2, 3, 3]


def test_how_long_ago_memory_was_touched():
    kilo = 1000 * F4
    x = torch.ones(1000)

    def twice():
        y = x + 1  # 2 kB, all new
        z = y * 2  # y was written just now; z is new
        return x + z  # 2 kB since z began to be written; 4 kB since x was read

    with watching.Watch() as watch:
        held = twice()
    found = [[touch.distance for touch in call.touches] for call in watch.calls]
    assert found == [[None, None], [2 * kilo, None], [5 * kilo, 3 * kilo, None]]
    assert all(touch.bytes == kilo for call in watch.calls for touch in call.touches)
    assert held.sum() == 5000


def test_the_peak_of_a_chain():
    """a, b = 2 a, c = b + 1; a goes; d = 3 c; b and c go. Three live at one time, and their sum."""
    kilo = 1000 * F4

    def chain():
        a = torch.ones(1000)
        b = a * 2
        c = b + 1
        del a
        d = c * 3
        del b, c
        return d.sum()

    with watching.Watch() as watch:
        total = chain()
    assert watch.peak == 3 * kilo
    assert total == 9000


def test_the_peak_of_a_forward_and_a_backward_pass():
    """sin keeps 2 x. Backward: cos of it, its product with the gradient, and the gradient of x."""
    kilo = 1000 * F4
    x = torch.ones(1000, requires_grad=True)
    with watching.Watch() as watch:
        (x * 2).sin().sum().backward()
    kept, cosine, product, loss, gradient = kilo, kilo, kilo, F4, F4
    assert watch.peak == x.nbytes + kept + cosine + product + loss + gradient


def test_what_was_there_before_is_part_of_the_peak():
    before, kilo = torch.ones(1000), 1000 * F4
    with watching.Watch() as watch:
        before.mul_(2)
        before + 1
    assert watch.peak == before.nbytes + kilo


def test_a_watcher_goes_with_its_calls_though_a_model_stays():
    model = nn.Linear(3, 2)
    with watching.Watch() as watch:
        model(torch.ones(4, 3)).sum().backward()
    assert watch.calls
    left = weakref.ref(watch)
    del watch
    gc.collect()
    assert left() is None


def values(step):
    return [call.value for call in watching.watch(step)]


def test_the_same_computed_again_has_the_same_value():
    x, y = torch.ones(3), torch.ones(3)
    one, two, three, four = values(lambda: (x + 1, x + 1, x + 2, y + 1))
    assert one == two and len({two, three, four}) == 3
    one, _, two = values(lambda: ((x.exp(), x.mul_(2), x.exp())))
    assert one != two
    one, two = values(lambda: (torch.rand(3), torch.rand(3)))
    assert one != two
    first, square, second, again = values(lambda: [f(x) for f in (torch.exp, torch.square)] * 1
                                          + [f(x[:]) for f in (torch.exp, torch.square)])  # fmt: skip
    assert (first, square) == (second, again)


def test_memory_that_is_used_again_is_another_value():
    """Batches that NumPy makes one after the other often lie at one address."""

    def micro_batches():
        for n in range(4):
            torch.from_numpy(np.full(100_000, float(n), np.float32)).sum()

    assert len(set(values(micro_batches))) == 4


def test_a_step_that_raises_leaves_no_watcher_behind():
    with pytest.raises(RuntimeError, match="stop"), watching.Watch() as watch:
        torch.ones(2) + 1
        raise RuntimeError("stop")
    model = nn.Linear(2, 1)
    step_of(model, torch.ones(1, 2))()
    assert [call.operator for call in watch.calls] == ["ones", "add"]


@pytest.mark.skipif(not machine.pages_handed_out(), reason="this system does not count pages")
def test_pages_of_fresh_memory_are_counted_where_they_are_first_written():
    """Of a large new tensor as many as it has, or fewer, larger ones; none when it is filled again
    nor when it is read.
    """
    size = 2**26  # bytes: more than a C library keeps

    def step():
        x = torch.empty(size // F4)
        for value in (1.0, 2.0):
            x.fill_(value)
        x.sum()

    first, again, read = (call.pages for call in watching.watch(step))
    assert size / 2**21 <= first <= 1.01 * size / 4096 + 100
    assert max(again, read) < first / 10
