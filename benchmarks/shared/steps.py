"""Training steps as readers write them, each a function of a benchmark's size → :class:`Training`.

Letters: B examples in a batch, T tokens or time steps, H numbers for each.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ed_lib import data, models, training


def cross_entropy(model, inputs, labels):
    return F.cross_entropy(model(inputs), labels)


def own_loss(model, inputs, labels):
    """Of a model of transformers, which computes its loss itself."""
    return model(inputs, labels=labels).loss


@dataclass
class Training:
    """A model with what a step of it needs. batch: inputs and labels, always the same, unless a
    ``loader`` brings others; context(): what the forward pass and the loss run in.
    """

    model: nn.Module
    batch: list
    new_optimizer: Callable = partial(torch.optim.SGD, lr=0.1)
    loss: Callable = cross_entropy
    loader: DataLoader | None = None
    context: Callable = contextlib.nullcontext

    def __post_init__(self):
        self.optimizer = self.new_optimizer(self.model.parameters())

    def to(self, device):
        """Moves the model and the batch, and begins the optimizer anew → itself. What a loader
        brings follows at each step.
        """
        self.model.to(device)
        self.batch = [each.to(device) for each in self.batch]
        self.optimizer = self.new_optimizer(self.model.parameters())
        return self

    def __call__(self, batch=None):
        """Trains once → the loss before it."""
        device = next(self.model.parameters()).device
        here = [each.to(device) for each in batch or self.batch]
        with self.context():
            loss = self.loss(self.model, *here)
        training.optimizer_step(loss, self.optimizer)
        return loss.detach()

    def set_rate(self, rate):
        """Gives the optimizer another learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def go(self):
        """What is timed: a step, or a pass through the loader. A pass begins with nothing loaded
        and uses up all that it loads, so workers load nothing in another version's turn.
        """
        for batch in self.loader or [self.batch]:
            self(batch)

    def endless(self):
        """The loader's batches, again and again; None without a loader."""
        return chain.from_iterable(repeat(self.loader)) if self.loader else None

    @property
    def steps(self):
        """How many there are in what is timed."""
        return len(self.loader or [self.batch])


def pictures(B, channels, side):
    return [torch.rand(B, channels, side, side), torch.randint(10, (B,))]


def lenet_of_d2l(size, images):
    """d2l's LeNet, of section 7.6. images: whether a batch has "few" or "many"."""
    model = nn.Sequential(
        # (B, 1, 28, 28) → (B, 6, 14, 14) → (B, 16, 5, 5)
        nn.Conv2d(1, 6, 5, padding=2), nn.Sigmoid(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Sigmoid(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.Sigmoid(), nn.Linear(120, 84), nn.Sigmoid(),
        nn.Linear(84, 10),
    )  # fmt: skip
    return Training(model, pictures(size.images[images], 1, 28))


def lenet(size):
    """A LeNet of today, with ReLU and Adam."""
    return Training(models.lenet(), pictures(size.images["some"], 1, 28), torch.optim.Adam)


def by_hand(q, k, v):
    """Attention of all tokens to all, written out: three of (B, a, T, d) → one."""
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


CORES = {"eager": by_hand, "sdpa": F.scaled_dot_product_attention}


class Layer(nn.Module):
    """A layer of a transformer, norms first: (B, T, H) → (B, T, H)."""

    def __init__(self, H, heads):
        super().__init__()
        self.heads = heads
        self.core = by_hand
        self.norm1 = nn.LayerNorm(H)
        self.norm2 = nn.LayerNorm(H)
        self.queries_keys_values = nn.Linear(H, 3 * H)
        self.out = nn.Linear(H, H)
        self.expand = nn.Sequential(nn.Linear(H, 4 * H), nn.GELU(), nn.Linear(4 * H, H))

    def forward(self, h):
        qkv = self.queries_keys_values(self.norm1(h))
        h = h + self.out(models.attention(qkv, self.heads, self.core))
        return h + self.expand(self.norm2(h))


class Encoder(nn.Module):
    """Words (B, T) → scores of ten classes, (B, 10)."""

    def __init__(self, size, attention):
        super().__init__()
        self.words = nn.Embedding(size.words, size.hidden)
        self.layers = nn.Sequential(*[Layer(size.hidden, size.heads) for _ in range(size.layers)])
        self.classes = nn.Linear(size.hidden, 10)
        self.set_attn_implementation(attention)

    def set_attn_implementation(self, name):
        """name: "eager" or "sdpa". The method is called as in transformers."""
        for layer in self.layers:
            layer.core = CORES[name]

    def forward(self, words):
        return self.classes(self.layers(self.words(words)).mean(1))


def texts(size, words):
    return torch.randint(words, (size.texts, size.tokens))


def encoder(size, attention):
    batch = [texts(size, size.words), torch.randint(10, (size.texts,))]
    return Training(Encoder(size, attention), batch, torch.optim.AdamW)


def gpt2(size):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": size.hidden, "n_layer": size.layers, "n_head": size.heads}
    dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    # The words are the labels too: the model shifts them by itself.
    words = texts(size, size.gpt2_words)
    # It would take its last word for the end of a text, also where there are fewer.
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(vocab_size=size.gpt2_words, **sizes, **dropout, **ends)
    return Training(GPT2LMHeadModel(config), [words, words], torch.optim.AdamW, own_loss)


def bert(size):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": size.hidden, "intermediate_size": 4 * size.hidden}
    sizes |= {"num_hidden_layers": size.layers, "num_attention_heads": size.heads}
    dropout = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    config = BertConfig(vocab_size=size.words, **sizes, **dropout, attn_implementation="eager")
    batch = [texts(size, size.words), torch.randint(2, (size.texts,))]
    return Training(BertForSequenceClassification(config), batch, torch.optim.AdamW, own_loss)


def resnet(size):
    """ResNet-18."""
    from transformers import ResNetConfig, ResNetForImageClassification

    widths = size.channels
    sizes = {"embedding_size": widths[0], "hidden_sizes": widths, "depths": [2] * len(widths)}
    config = ResNetConfig(layer_type="basic", num_labels=10, **sizes)
    # At ten times the rate rounding has grown a thousandfold by the third loss: batch norms, ReLUs.
    momentum = partial(torch.optim.SGD, lr=0.0001, momentum=0.9)
    batch = pictures(size.texts, 3, size.side)
    return Training(ResNetForImageClassification(config), batch, momentum, own_loss)


class CellByCell(nn.Module):
    """An LSTM as a loop over its cell: (B, T, H) → scores of ten classes, (B, 10)."""

    def __init__(self, H):
        super().__init__()
        self.cell = nn.LSTMCell(H, H)
        self.classes = nn.Linear(H, 10)

    def forward(self, x):
        states = None
        for now in x.unbind(1):
            states = self.cell(now, states)
        return self.classes(states[0])


def cells(size, B):
    batch = [torch.randn(B, size.cells, size.hidden), torch.randint(10, (B,))]
    return Training(CellByCell(size.hidden), batch, torch.optim.Adam)


def deep_mlp(size):
    """Many small layers, a small batch, and an optimizer that goes from tensor to tensor."""
    model = models.mlp([size.narrow] * size.deep + [10])
    batch = [torch.randn(16, size.narrow), torch.randint(10, (16,))]
    return Training(model, batch, partial(torch.optim.Adam, foreach=False))


class Turned(Dataset):
    """Images of MNIST, each turned by an angle that its number draws."""

    def __init__(self, n):
        mnist = data.load("mnist")
        self.images, self.labels = data.tensors(mnist.train_images[:n], mnist.train_labels[:n])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        angle = torch.rand(1, generator=torch.Generator().manual_seed(i)) - 0.5
        zero = torch.zeros(1)
        first = torch.stack([angle.cos(), -angle.sin(), zero])
        second = torch.stack([angle.sin(), angle.cos(), zero])
        # (1, 2, 3), a rotation without a shift
        turn = torch.stack([first, second]).view(1, 2, 3)
        image = self.images[i][None]
        grid = F.affine_grid(turn, image.shape, align_corners=False)
        return F.grid_sample(image, grid, align_corners=False)[0], self.labels[i]


def slow_loader(size):
    """A small MLP, which waits while its images are turned, one by one."""
    loader = DataLoader(Turned(size.loaded * size.images["some"]), size.images["some"])
    model = nn.Sequential(nn.Flatten(), models.mlp())
    return Training(model, next(iter(loader)), torch.optim.Adam, loader=loader)


class Pointwise(nn.Module):
    """A scale, a shift and GELU, written out: (B, H) → (B, H)."""

    def __init__(self, H):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(H))
        self.shift = nn.Parameter(torch.zeros(H))

    def forward(self, x):
        h = x * self.scale + self.shift
        return 0.5 * h * (1 + torch.tanh((2 / math.pi) ** 0.5 * (h + 0.044715 * h**3)))


def squared(model, inputs, targets):
    return (model(inputs) - targets).square().mean()


def pointwise(size):
    batch = [torch.randn(size.rows, size.hidden), torch.rand(size.rows, size.hidden)]
    return Training(Pointwise(size.hidden), batch, loss=squared)
