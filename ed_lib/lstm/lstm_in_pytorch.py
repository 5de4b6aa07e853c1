"""What PyTorch itself has beside a plain ``torch.nn.LSTM`` on a CPU, for passes without gradients:
its weights packed once, its weights and inputs in eight bits, and all of it in bfloat16.

Letters: T steps, B batch, I inputs, H hidden.
"""

import copy
import warnings
from collections.abc import Callable

import torch

from ed_lib import check, machine
from ed_lib.lstm.doors import check_module

HAS_BFLOAT16 = bool({"bf16", "amx"} & {*machine.flags()})  # else it is emulated, and slow
LSTM_MODE = 2  # what oneDNN's interface calls an LSTM


def packed_once(module: torch.nn.LSTM, x: torch.Tensor) -> Callable:
    """The operator that ``nn.LSTM`` calls on a CPU, oneDNN's, with weights packed beforehand for
    inputs of the shape of x (T, B, I) → a function of such an input, which starts from zeros and
    answers as the module does. ValueError unless the module is plain and has one layer.
    """
    check_module(module)
    check.choice("num_layers", module.num_layers, (1,))
    w_ih, w_hh, *biases = (weight.detach() for weight in module.all_weights[0])
    size = module.hidden_size
    zeros = x.new_zeros(x.shape[1], size)  # (B, H), of h and of c
    pack = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight
    # size, has biases, is bidirectional, batch first, the input's sizes
    weights = pack(w_ih, w_hh, size, False, True, False, [*x.shape])

    def run(x):
        # reverse, batch sizes, mode, hidden size, layers, biases, bidirectional, batch first, train
        options = False, [], LSTM_MODE, size, 1, True, False, False, False
        y, h, c, _ = torch.ops.aten.mkldnn_rnn_layer(x, *weights, *biases, zeros, zeros, *options)
        return y, (h, c)

    return run


def in_eight_bits(module: torch.nn.LSTM) -> torch.nn.Module:
    """A copy whose products are of bytes, by ``torch.ao.quantization.quantize_dynamic``: weights
    rounded once, x and h in each call. In float32 go in and come out x and the states.
    """
    from torch.ao.quantization import quantize_dynamic

    with warnings.catch_warnings():
        # It is deprecated, and what is to replace it, torchao's quantize_, has no LSTM.
        warnings.simplefilter("ignore")
        # What it replaces has to be inside of a module.
        whole = torch.nn.Sequential(copy.deepcopy(module))
        return quantize_dynamic(whole, {torch.nn.LSTM}, torch.qint8)[0]


def in_bfloat16(module: torch.nn.LSTM) -> Callable:
    """A copy in bfloat16, as a function of an input in float32; its answer is in bfloat16."""
    half = copy.deepcopy(module).bfloat16()
    return lambda x: half(x.bfloat16())
