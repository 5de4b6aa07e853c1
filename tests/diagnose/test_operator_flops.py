"""FLOPs of a watched step beside those of PyTorch's own counter; where that says 0, beside the same
network made of parts that it can count.
"""

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from ed_lib.diagnose import watching

IDS = torch.arange(12).reshape(1, 12).repeat(2, 1)


def step_of(model, x, *, adam=False):
    """A function that trains the model once."""
    kind = torch.optim.Adam if adam else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        out = model(x)
        getattr(out, "logits", out).sum().backward()
        optimizer.step()

    return step


def watched(step):
    return sum(call.flops for call in watching.watch(step))


def counted(step):
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def mlp():
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)), torch.ones(8, 20)


def lenet():
    layers = [nn.Conv2d(1, 6, 5, padding=2), nn.Sigmoid(), nn.AvgPool2d(2)]
    layers += [nn.Conv2d(6, 16, 5, bias=False), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(400, 120), nn.Linear(120, 10)), torch.ones(3, 1, 28, 28)


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.ones(3, 7, 16)


def gpt2(attention):
    sizes = {"n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2}
    tokens = {"vocab_size": 31, "bos_token_id": 0, "eos_token_id": 0}
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(**sizes, **tokens, **dropouts, attn_implementation=attention)
    return transformers.GPT2LMHeadModel(config), IDS


def resnet():
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "num_labels": 3}
    config = transformers.ResNetConfig(**sizes, layer_type="bottleneck")
    return transformers.ResNetForImageClassification(config), torch.ones(2, 3, 32, 32)


def batched():
    class Products(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 4, 5))

        def forward(self, x):
            return torch.einsum("bi,hij->bhj", x, self.weight) + torch.baddbmm(
                torch.zeros(3, 2, 5), x.expand(3, 2, 4), self.weight
            ).transpose(0, 1)

    return Products(), torch.ones(2, 4)


NETS = {
    "MLP": mlp,
    "LeNet": lenet,
    "encoder": encoder,
    "GPT-2": lambda: gpt2("sdpa"),
    "GPT-2 in plain products": lambda: gpt2("eager"),
    "ResNet": resnet,
    "products of batches": batched,
}


@pytest.mark.oracle
@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
@pytest.mark.parametrize("adam", [False, True], ids=["SGD", "Adam"])
def test_flops_are_those_of_pytorchs_counter(net, adam):
    step = step_of(*net(), adam=adam)
    assert watched(step) == counted(step) > 0


@pytest.mark.oracle
def test_flops_of_a_step_in_bfloat16():
    model, x = mlp()
    step = step_of(model, x)

    def autocast():
        with torch.autocast("cpu", torch.bfloat16):
            step()

    calls = watching.watch(autocast)
    assert sum(call.flops for call in calls) == counted(step)
    assert {call.dtype for call in calls if call.flops} == {"bfloat16"}


class Cells(nn.Module):
    """What ``nn.LSTM`` computes, with its weights, a cell at a time."""

    def __init__(self, lstm):
        super().__init__()
        sizes = [lstm.input_size] + [lstm.hidden_size] * (lstm.num_layers - 1)
        self.cells = nn.ModuleList(nn.LSTMCell(size, lstm.hidden_size) for size in sizes)
        for n, cell in enumerate(self.cells):
            state = {f"{kind}_{of}": getattr(lstm, f"{kind}_{of}_l{n}")
                     for kind in ("weight", "bias") for of in ("ih", "hh")}  # fmt: skip
            cell.load_state_dict(state)

    def forward(self, x, states):
        for n, cell in enumerate(self.cells):
            h, c = states[0][n], states[1][n]
            out = []
            for row in x:
                h, c = cell(row, (h, c))
                out.append(h)
            x = torch.stack(out)
        return x


@pytest.mark.oracle
@pytest.mark.parametrize("layers", [1, 2])
def test_flops_of_an_lstm_are_those_of_its_cells(layers):
    """PyTorch's counter says 0 of an LSTM. Of the cells it counts all products, with the gradients
    of the input and of the first state, which oneDNN computes whether they are asked for or not.
    """
    lstm = nn.LSTM(5, 4, layers)
    cells = Cells(lstm)
    inputs = [torch.ones(6, 3, 5), torch.zeros(layers, 3, 4), torch.zeros(layers, 3, 4)]

    def forward(module):
        x, h, c = inputs
        out = module(x, (h, c))
        return out if module is cells else out[0]

    def both(module):
        return lambda: forward(module).sum().backward()

    assert torch.allclose(forward(lstm), forward(cells), atol=1e-6)
    assert watched(lambda: forward(lstm)) == counted(lambda: forward(cells)) > 0
    for each in inputs:
        each.requires_grad_()
    assert watched(both(lstm)) == counted(both(cells)) == watched(both(cells))
    assert counted(both(lstm)) == 0


@pytest.mark.oracle
def test_flops_of_a_products_with_a_vector_are_those_of_one_column():
    matrix, vector = torch.ones(5, 7), torch.ones(7)
    column = counted(lambda: matrix @ vector[:, None])
    assert watched(lambda: matrix @ vector) == column == 2 * 5 * 7
    assert watched(lambda: torch.addmv(torch.ones(5), matrix, vector)) == column
    assert watched(lambda: vector @ vector) == 2 * 7


def test_what_multiplies_no_matrices_has_no_flops():
    x = torch.ones(3, 4)
    assert watched(lambda: functional.softmax(x * x + 1, 1).sum()) == 0
