"""What may make a training step faster, by the names that ``ed_lib.diagnose`` gives: each is a
function of a :class:`~benchmarks.shared.steps.Training` → the same training with the cure.
"""

import os
import shutil
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader

from ed_lib import machine

# A larger batch has so many times the examples, and a loader so many workers.
TIMES = 4
WORKERS = 2


def compiled(plain):
    torch.compiler.reset()
    return replace(plain, model=torch.compile(plain.model))


def fused_optimizer(plain):
    return replace(plain, new_optimizer=partial(plain.new_optimizer, fused=True))


def autocast(plain):
    device = next(plain.model.parameters()).device.type
    return replace(plain, context=partial(torch.autocast, device, torch.bfloat16))


def channels_last(plain):
    images, labels = plain.batch
    plain.model.to(memory_format=torch.channels_last)
    return replace(plain, batch=[images.contiguous(memory_format=torch.channels_last), labels])


def fused_attention(plain):
    plain.model.set_attn_implementation("sdpa")
    return plain


def larger_batch(plain):
    """The same examples several times, so that the mean loss is the same."""
    return replace(plain, batch=[torch.cat(TIMES * [each]) for each in plain.batch])


def loader_workers(plain):
    dataset, size = plain.loader.dataset, plain.loader.batch_size
    # Else each pass through the data would start new processes.
    workers = {"num_workers": WORKERS, "persistent_workers": True}
    return replace(plain, loader=DataLoader(dataset, size, **workers))


class InOneCall(nn.Module):
    """The same LSTM as one call for all steps, with the loop's weights."""

    def __init__(self, loop):
        super().__init__()
        self.lstm = nn.LSTM(loop.cell.input_size, loop.cell.hidden_size, batch_first=True)
        weights = {f"{name}_l0": weight for name, weight in loop.cell.state_dict().items()}
        self.lstm.load_state_dict(weights)
        self.classes = loop.classes

    def forward(self, x):
        output, _ = self.lstm(x)
        return self.classes(output[:, -1])


def one_call(plain):
    device = next(plain.model.parameters()).device
    return replace(plain, model=InOneCall(plain.model).to(device))


NAMES = {
    compiled: "torch.compile",
    fused_optimizer: "a fused optimizer",
    autocast: "bfloat16",
    channels_last: "channels last",
    fused_attention: "a fused attention",
    larger_batch: "a larger batch",
    loader_workers: "loader workers and pinned memory",
    one_call: "one call in place of many",
}


def lacks(cure, device):
    """What a cure needs and this machine lacks, in words; "" if it can be tried."""
    if cure is compiled and not shutil.which(os.environ.get("CXX", "g++")):
        return "a C++ compiler"
    if cure is autocast and not computes_in_bfloat16(device):
        return "instructions for bfloat16"
    return ""


def computes_in_bfloat16(device):
    if device == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    return bool({"bf16", "amx"} & {*machine.flags()})
