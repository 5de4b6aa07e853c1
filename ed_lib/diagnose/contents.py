"""What stands in the tensors of a step and makes it slower: subnormal numbers, for which many
processors take far longer, and rows whose label the loss ignores.
"""

import torch

from ed_lib.diagnose import operands
from ed_lib.diagnose.watching import Watch

FEW = 1000  # numbers: smaller tensors cost no time
WIDE = (torch.float32, torch.float64)  # narrower formats use their subnormals
LOSSES = ("aten::nll_loss_forward", "aten::nll_loss2d_forward")


class Contents(Watch):
    """Watches a step, and looks into what its operators read: it is no clock."""

    def __init__(self):
        super().__init__()
        self._below: dict[tuple, int] = {}  # a tensor's state → how many are subnormal

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tiny = self._subnormal(args, kwargs)
        ignored = 0.0
        if function.name().startswith(LOSSES):
            labels, ignore = args[1], args[4]
            ignored = (labels == ignore).double().mean().item()
        seen = len(self.calls)
        result = super().__torch_dispatch__(function, types, args, kwargs)
        if len(self.calls) > seen:
            self.calls[-1].subnormal = tiny
            self.calls[-1].ignored = ignored
        return result

    def _subnormal(self, args, kwargs):
        """The share of subnormal numbers among all that an operator is given on a processor."""
        found = total = 0
        for tensor in operands.strided(operands.leaves((args, kwargs))):
            if tensor.numel() >= FEW and tensor.dtype in WIDE and tensor.device.type == "cpu":
                # A loop meets the same weights in each turn.
                state = (*self._state(tensor), tensor.storage_offset(), tensor.shape)
                if state not in self._below:
                    self._below[state] = _count(tensor)
                found += self._below[state]
                total += tensor.numel()
        return found / total if total else 0.0


def _count(tensor):
    size = tensor.detach().abs()
    return int(((size < torch.finfo(tensor.dtype).tiny) & (size > 0)).sum())
