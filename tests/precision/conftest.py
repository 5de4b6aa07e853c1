"""Formats end in subnormal numbers, which other tests switch off for speed."""

import pytest
import torch


@pytest.fixture(autouse=True)
def subnormal_numbers():
    """Switches them on, for this thread alone: those that PyTorch has started keep what they began
    with.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)
