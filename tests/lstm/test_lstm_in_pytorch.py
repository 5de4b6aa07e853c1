"""PyTorch's own ways to run an LSTM on a CPU, against the plain one."""

import copy

import pytest
import torch

from ed_lib.lstm import lstm_in_pytorch


def drawn(inputs=24, hidden=40, batch=3):
    torch.manual_seed(0)
    return torch.nn.LSTM(inputs, hidden), torch.randn(7, batch, inputs)


def check_close(found, right, close):
    (output, states), (wanted, wanted_states) = found, right
    for ours, theirs in zip((output, *states), (wanted, *wanted_states), strict=True):
        assert ours.numel() == theirs.numel()
        torch.testing.assert_close(
            ours.float().view_as(theirs), theirs, rtol=0, atol=close * float(theirs.abs().max())
        )


@pytest.mark.oracle
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
@pytest.mark.parametrize("batch", [1, 5])
@torch.no_grad()
def test_weights_packed_once_give_the_same_numbers(batch):
    module, x = drawn(batch=batch)
    run = lstm_in_pytorch.packed_once(module, x)
    check_close(run(x), module(x), 1e-5)
    check_close(run(-x), module(-x), 1e-5)


@pytest.mark.parametrize(
    "name, value, wanted",
    [("num_layers", 2, "num_layers is 2"), ("bidirectional", True, "module has bidirectional")],
)
def test_what_cannot_be_packed_is_told(name, value, wanted):
    with pytest.raises(ValueError, match=wanted):
        lstm_in_pytorch.packed_once(torch.nn.LSTM(3, 4, **{name: value}), torch.ones(1, 1, 3))


@pytest.mark.oracle
@torch.no_grad()
def test_eight_and_sixteen_bits_are_near_and_leave_the_module_as_it_was():
    module, x = drawn()
    before = copy.deepcopy(module.state_dict())
    right = module(x)
    quantized = lstm_in_pytorch.in_eight_bits(module)
    assert type(quantized).__module__.startswith("torch.ao.nn.quantized.dynamic")
    check_close(quantized(x), right, 0.15)
    assert not torch.equal(quantized(x)[0], right[0])
    check_close(lstm_in_pytorch.in_bfloat16(module)(x), right, 0.05)
    assert all(map(torch.equal, module.state_dict().values(), before.values()))
