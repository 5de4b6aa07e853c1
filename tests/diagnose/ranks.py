"""What the tests launch: a function that other processes can import."""

import time
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ed_lib import diagnose
from ed_lib.diagnose import operators
from tests.diagnose import made_up


def diagnosed():
    """The report of a rank of DDP, and whether its model is afterwards what it was. The ranks'
    clocks do not agree: one of them works longer between its steps.
    """
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [each.clone() for each in model.parameters()]

    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 6)).sum().backward()
        optimizer.step()
        time.sleep(0.02 * dist.get_rank())

    with mock.patch.object(operators, "prices", made_up.prices):
        report = diagnose.step(step, restore=[model, optimizer])
    same = all(map(torch.equal, before, model.parameters()))
    sends = {one.name for one in report.operators if one.sends}
    return str(report), sends, report.measured.steps, report.parts, report.seconds, same
