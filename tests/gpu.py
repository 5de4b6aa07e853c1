"""The device "cuda" for tests: the machine's GPU, or on a machine without one a stand-in."""

import contextlib

import pytest

from ed_lib import arrays


def gpu():
    """A context in which "cuda" is a device."""
    if arrays.gpu_count():
        return contextlib.nullcontext()
    pytest.importorskip("triton")
    from tools.stand_in import stand_in  # sets Triton's interpreter, so never where there is a GPU

    return stand_in()


class Kernels:
    """In the place of a Triton kernel: counts its launches, and computes nothing."""

    def __init__(self):
        self.launched = 0

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.launched += 1

        return launch
