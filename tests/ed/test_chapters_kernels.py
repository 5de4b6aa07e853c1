"""The CUDA C that chapters show, compiled for GPUs: what it computes, their own cells check on a CPU."""

import re

import pytest

from tests import cuda
from tools import notebooks
from tools.notebooks import ROOT, code_cells

CELLS = [cell.source for path in notebooks.chapters() for cell in code_cells(notebooks.read(ROOT / path))]
KERNELS = dict(match for cell in CELLS for match in re.findall(r'^(\w+) = r"""(.*?)"""', cell, re.M | re.S))


@pytest.mark.oracle
@pytest.mark.parametrize("architecture", cuda.ARCHITECTURES)
@pytest.mark.parametrize("name", KERNELS)
def test_nvrtc_compiles_what_chapters_show(name, architecture):
    assert "__global__" in KERNELS[name] and cuda.cubin_size(KERNELS[name], architecture) > 1000
