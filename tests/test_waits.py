"""How often the host waits for the device, and how many launches it gives it: the rungs of the
LSTM's ladder, and steps of training with a loss scaler. Without a GPU, and without a number
computed on one: PyTorch's fake tensors know the device that they would be on.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ed_lib import models, training
from ed_lib.lstm import LSTM, RUNGS, counters
from ed_lib.precision import autocasting, scaler

ANSWERS = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
}  # of operators that tell the host
INDEXING = {
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
}  # their shapes, if an index is a mask


class Waits(TorchDispatchMode):
    """How often the host waits: for a number (``item``), for a shape that depends on the data
    (``nonzero``, a mask as an index), and for a copy between it and a GPU, unless that is
    ``non_blocking``. In a call with no tensor on a GPU the first two count on the CPU, which stands
    for one.
    """

    def __init__(self):
        super().__init__()
        self.waits, self.gpu = 0, False  # gpu: whether a tensor was seen on one

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        devices = {
            t.device.type
            for t in tree_leaves((args, kwargs, result))
            if isinstance(t, torch.Tensor)
        }
        if devices - {"cpu"} and not self.gpu:
            self.gpu, self.waits = True, 0  # what was seen on the CPU does stay there
        if not function.is_view and (not self.gpu or devices - {"cpu"}):
            self.waits += self.waiting(function, args, kwargs, devices)
        return result

    @staticmethod
    def waiting(function, args, kwargs, devices):
        name = function.name().split("::")[1].split(".")[0]
        if name in ("copy_", "_to_copy"):
            non_blocking = kwargs.get("non_blocking", name == "copy_" and len(args) > 2 and args[2])
            return len(devices) > 1 and not non_blocking
        if name in INDEXING:
            return any(
                index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
            )
        return not ANSWERS.isdisjoint(function.tags)


def count(call):
    """The counts of a call, and of the host's waits in it."""
    with Waits() as watch:
        found = counters.count_work(call)
    found.waits = watch.waits
    return found


X, MASK, INDEX = torch.arange(6.0).view(2, 3), torch.tensor([True, False]), torch.tensor([1, 0, 1])
WAITING = {  # what the host waits for, on a GPU
    "a number": lambda: X.sum().item(),
    "a decision": lambda: bool(MASK.all()),
    "a comparison": lambda: torch.equal(X, X),
    "places": lambda: X.nonzero(),
    "a mask's rows": lambda: X[MASK],
    "a mask's rows, written": lambda: X.clone().index_put_((MASK,), torch.zeros(1, 3)),
    "a mask's numbers": lambda: X.masked_select(X > 2),
    "those that differ": lambda: X.unique(),
    "repetitions": lambda: torch.repeat_interleave(INDEX),
}
NOT_WAITING = {
    "rows": lambda: X[INDEX].double().copy_(X[INDEX]),
    "where to write": lambda: X.clone().masked_fill_(X > 2, 0.0).index_put_((INDEX[:2],), X),
    "new values": lambda: torch.where(X > 2, X, X.new_zeros(())).cumsum(0).half().tanh_().topk(1),
    "a view": lambda: X.view(-1).detach().cpu(),
}


@pytest.mark.oracle
@pytest.mark.parametrize("what", [*WAITING, *NOT_WAITING])
def test_what_the_host_waits_for(what):
    assert count((WAITING | NOT_WAITING)[what]).waits == (what in WAITING)


class Answer(TorchDispatchMode):
    """Answers, with a number, who asks for that of a fake tensor."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default and args[0].device.type != "cpu":
            return self.number
        return function(*args, **(kwargs or {}))


COPIES = [
    (lambda cpu, gpu: gpu.cpu(), 1),
    (lambda cpu, gpu: cpu.copy_(gpu), 1),
    (lambda cpu, gpu: gpu.copy_(cpu), 1),
    (lambda cpu, gpu: cpu.to("cuda"), 1),
    (lambda cpu, gpu: cpu.copy_(gpu, non_blocking=True), 0),
    (lambda cpu, gpu: cpu.to("cuda", non_blocking=True), 0),
    (lambda cpu, gpu: gpu.copy_(gpu.clone()), 0),
    (lambda cpu, gpu: gpu.half(), 0),
    (lambda cpu, gpu: (torch.tensor(1.0).item(), gpu.half()), 0),  # beside a GPU, the CPU is itself
    (lambda cpu, gpu: (gpu.half(), torch.tensor(1.0).item()), 0),
    (lambda cpu, gpu: (torch.tensor(1.0).item(), gpu.sum().item()), 1),
]


@pytest.mark.oracle
@pytest.mark.parametrize("copy, waits", COPIES)
def test_copies_between_the_host_and_a_gpu(copy, waits):
    with (
        FakeTensorMode(),
        Answer(0.0),
    ):  # where tensors on "cuda" have a shape, and their numbers are zero
        cpu, gpu = torch.empty(3), torch.empty(3, device="cuda")
        assert count(lambda: copy(cpu, gpu)).waits == waits


@pytest.mark.oracle
@pytest.mark.parametrize("rung", RUNGS)
def test_a_pass_through_an_lstm_waits_for_nothing_and_the_way_back_has_no_more_launches_than_known(
    rung,
):
    """Those of the forward pass: tests/lstm/test_counters.py."""
    for T, L in ((1, 1), (9, 1), (8, 3), (5, 5)):
        module = LSTM(5, 4, L, rung=rung)
        x = torch.zeros(T, 3, 5, requires_grad=True)
        y, leaves = module(x)[0], (x, *module.parameters())
        forward = count(torch.no_grad()(partial(module, x)))
        back = count(lambda y=y, leaves=leaves: torch.autograd.grad(y, leaves, torch.ones_like(y)))
        assert forward.waits == back.waits == 0, (rung, T, L)
        assert back.products <= L * (T + 3) and back.pointwise <= L * (23 * T + 5) + 4, (
            rung,
            T,
            L,
            back,
        )


def step(device, make_scaler, answer=0.0, optimizer=torch.optim.SGD, **options):
    """The counts of the second step of an MLP with six parameters, whose device answers with this
    number.
    """
    model = models.mlp((16, 32, 32, 10)).to(device)
    x, labels = torch.rand(8, 16, device=device), torch.zeros(8, dtype=torch.int64, device=device)
    update, scaling = optimizer(model.parameters(), 1e-3, **options), make_scaler()

    def once():
        with autocasting.autocast(torch.float16):
            loss = F.cross_entropy(model(x), labels)
        training.optimizer_step(loss, update, scaling)

    with Answer(answer):
        once()
        return count(once)


torchs, ours = partial(torch.amp.GradScaler, "cpu"), partial(scaler.GradScaler, "cpu")
SCALERS = {  # the scaler, what the device answers to go on and to skip, launches added to those of a step
    "none": (lambda: None, 0.0, 0.0, 0),
    "torch's": (torchs, 0.0, 1.0, 11),  # the sum of "is there an inf?"
    "ours": (ours, 1.0, 0.0, 8 + 4 * 6),  # "are all finite?"; four launches a parameter
}


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("name", SCALERS)
def test_a_step_with_a_scaler_waits_once_for_its_device(name, optimizer):
    make, go_on, skip, more = SCALERS[name]
    plain = step(
        "meta", lambda: None, optimizer=optimizer
    )  # "meta": not the CPU, and without numbers
    found = step("meta", make, go_on, optimizer)
    assert (plain.products, plain.waits) == (8, 0)  # three forward, five back
    assert found.products == 8 and found.pointwise <= plain.pointwise + more
    assert found.waits == step("meta", make, skip, optimizer).waits == (name != "none")


def test_the_launches_and_waits_of_other_steps():
    assert step("meta", lambda: None, foreach=False).launches <= 45
    assert step("cpu", lambda: None, foreach=False).waits == 0
    assert step("cpu", torchs).waits == 1
    assert (
        step("cpu", ours).waits <= 2
    )  # 1 / scale in float32, which is a host's number beside a GPU too
    assert step("cpu", torchs, optimizer=torch.optim.AdamW, fused=True).waits == 0
