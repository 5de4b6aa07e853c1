"""What is kept for a backward pass, counted and by formula; and recomputation."""

import pytest
import torch

from ed_lib.models import RECOMPUTE, Block
from ed_lib.parallel import ledger


def kept(call, parameters):
    """Bytes that autograd saves for a backward pass, by its own hooks, parameters left out."""
    memory = {}

    def pack(tensor):
        # The storage is held, so that its address is not given out a second time.
        storage = tensor.untyped_storage()
        memory[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call()
    del result
    for parameter in parameters:
        memory.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in memory.values())


def block(how, hidden=12, heads=3):
    torch.manual_seed(0)
    return Block(hidden, heads, how)


@pytest.mark.oracle
@pytest.mark.parametrize("how", RECOMPUTE)
@pytest.mark.parametrize(
    "tokens, sequences, hidden, heads", [(5, 3, 12, 3), (16, 1, 8, 4), (1, 2, 4, 1)]
)
def test_a_block_keeps_what_the_formula_says(how, tokens, sequences, hidden, heads):
    made = block(how, hidden, heads)
    x = torch.randn(sequences, tokens, hidden, requires_grad=True)
    found = kept(lambda: made(x), made.parameters())
    # Each of two norms keeps a mean and a spread for each token, in float32.
    norms = 0 if how == "full" else 2 * 2 * 4 * tokens * sequences
    assert found - norms == ledger.activations(tokens, sequences, hidden, heads, how, itemsize=4)


@pytest.mark.parametrize("how", RECOMPUTE)
def test_recomputing_changes_no_number(how):
    x = torch.randn(2, 5, 12)
    found = []
    for made in (block("none"), block(how)):
        inputs = x.clone().requires_grad_()
        y = made(inputs)
        found.append([y, *torch.autograd.grad(y.square().sum(), [inputs, *made.parameters()])])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.oracle
def test_the_published_ledger():
    of = 7.5e9  # of ZeRO's figure 1, on 64 devices, in GB of 1e9 bytes
    wanted = {0: 120, 1: 31.4, 2: 16.6, 3: 1.9}
    for stage, gigabytes in wanted.items():
        assert round(sum(ledger.state(of, 64, stage).values()) / 1e9, 1) == gigabytes
    assert sum(ledger.state(1, 1, 0, ledger.FULL).values()) == 16
    assert ledger.sent(1000, 4, 3) == 1.5 * ledger.sent(1000, 4, 0)


def test_bytes_are_those_of_a_memory_however_its_tensors_are_given():
    tensor = torch.ones(3)
    assert ledger.nbytes(tensor) == 12
    assert ledger.nbytes(torch.nn.Parameter(torch.ones(2, 3))) == 24
    assert ledger.nbytes([tensor, torch.ones(2, dtype=torch.float64)]) == 12 + 16
    # Views are of one memory; a number has no axes, and None no memory.
    assert ledger.nbytes([tensor, tensor[1:], torch.ones(()), None]) == 12
    assert ledger.nbytes(iter([torch.ones(5)])) == 20


def test_the_bytes_of_a_state_dict_are_those_of_its_tensors():
    assert ledger.nbytes(torch.nn.Linear(3, 2).state_dict()) == 4 * (3 * 2 + 2)
