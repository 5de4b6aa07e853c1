"""A pretrained encoder that fits a laptop: all-MiniLM-L6-v2, of BERT's architecture, in the book's
own code; and its fine-tuning on pairs of sentences, as BERT's authors do it.

Six layers of 384 cells, 22.7 million parameters; W. Wang and others, "MiniLM" (2020), in the
version of the sentence-transformers project. T tokens a sentence or pair, cut at the model's 512
positions.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ed_lib import check, data, training
from ed_lib.models import Encoder

SIZES = {"layers": 6, "hidden": 384, "heads": 12, "vocabulary": 30_522, "positions": 512}
EPS = 1e-12  # of BERT's layer norms
NAMES = {  # {our module: theirs, which are joined in it}
    "tokens": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
    # in each layer
    "queries_keys_values": "attention.self.query attention.self.key attention.self.value",
    "out": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "wide": "intermediate.dense",
    "narrow": "output.dense",
    "norm2": "output.LayerNorm",
}


def load(classes: int = 3, seed: int = 0) -> Encoder:
    """The encoder with the published weights, and a new layer for ``classes``, drawn by ``seed``.
    Errors: :func:`ed_lib.data.minilm`'s, and ImportError without safetensors.
    """
    from safetensors.torch import load_file

    net = Encoder(**SIZES, classes=classes, seed=seed, eps=EPS)
    load_bert(net, load_file(data.minilm("model.safetensors")))
    return net


def load_bert(net: Encoder, theirs: Mapping[str, Tensor]) -> None:
    """Puts the tensors of a BERT, by the names of ``transformers``, into ``net``, all but its
    ``classes``.

    ValueError, before anything changes, if tensors are missing or left over or have other shapes.
    """
    ours = {name: p for name, p in net.state_dict().items() if not name.startswith("classes.")}
    sources = {name: _their_names(name) for name in ours}
    wanted = {each for some in sources.values() for each in some}
    # Older checkpoints hold 0, 1, 2, … too, which is nothing learned.
    wrong = sorted(wanted ^ (theirs.keys() - {"embeddings.position_ids"}))
    if wrong:
        raise ValueError(
            f"theirs lacks, or net has no use for, {', '.join(wrong)}; wanted a BERT's tensors"
        )
    joined = {}
    for name, some in sources.items():
        rows, *columns = ours[name].shape
        # Queries, keys and values are joined: each has a third of the rows.
        wanted_shape = [rows // len(some), *columns]
        for each in some:
            check.shape(each, tuple(theirs[each].shape), wanted_shape)
        joined[name] = torch.cat([theirs[each] for each in some])
    net.load_state_dict(joined, strict=False)


def _their_names(ours):
    """The tensors of a BERT that are joined in one of ours, such as layers.0.wide.weight."""
    *layer, module, kind = ours.split(".")
    inside = f"encoder.layer.{layer[1]}." if layer else ""
    return [f"{inside}{each}.{kind}" for each in NAMES[module].split()]


def tokenizer() -> Any:
    """The published tokenizer, which cuts words into pieces of BERT's vocabulary; errors as
    :func:`load`.
    """
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(data.minilm("tokenizer.json")))
    made.no_padding()
    made.enable_truncation(SIZES["positions"])
    return made


def tokenize(
    tokenizer: Any, first: Sequence[str], second: Sequence[str] | None = None
) -> tuple[list, list]:
    """Sentences, or pairs of them → (tokens, segments): of each a tensor (T,) of int64; segments
    are 0 up to the first sentence's end, 1 after it. ValueError for sides that are not equally
    long.
    """
    found = tokenizer.encode_batch(
        list(first if second is None else zip(first, second, strict=True))
    )
    tokens = [torch.tensor(one.ids) for one in found]
    segments = [torch.tensor(one.type_ids) for one in found]
    return tokens, segments


@torch.no_grad()
def embeddings(net: Encoder, sentences: Sequence[Tensor], batch: int = 64) -> Tensor:
    """Sentences, each as tokens (T,) → their vectors (N, H) of length 1: the mean of the last layer
    over the tokens, as the model's makers have it. The cosine of two says how alike they are in
    meaning.
    """
    found = net.classes.weight.new_empty(len(sentences), net.classes.in_features)
    for rows in alike(sentences, batch):
        # (B, T) both
        tokens, mask = padded([sentences[n] for n in rows])
        mask = mask.to(found.device)
        # (B, T, H): what only fills up adds nothing.
        h = net.hidden(tokens.to(found.device), mask=mask) * mask[..., None]
        # A sum in place of the mean: its length is taken out anyway.
        found[rows] = F.normalize(h.sum(1), dim=1)
    return found


def alike(sentences: Sequence[Tensor], batch: int) -> list[list[int]]:
    """The numbers of sentences in batches, those of like length together."""
    check.count("batch", batch)
    order = sorted(range(len(sentences)), key=lambda n: len(sentences[n]))
    return [order[start : start + batch] for start in range(0, len(order), batch)]


def padded(some: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Tensors (T,) → one of (B, longest T), filled with 0, and where it is not filling, as bool."""
    # (B, T)
    longest = pad_sequence(list(some), batch_first=True)
    lengths = torch.tensor([len(each) for each in some])
    return longest, torch.arange(longest.shape[1]) < lengths[:, None]


class Examples(NamedTuple):
    """N pairs of sentences as numbers: ``tokens`` and ``segments``, tensors (T,) each; ``labels``
    (N,).
    """

    tokens: list[Tensor]
    segments: list[Tensor]
    labels: Tensor

    def batch(self, rows: Sequence[int], device: Any = "cpu") -> list[Tensor]:
        """Tokens, segments and mask, each (B, longest T), and labels (B,), of these pairs."""
        tokens, mask = padded([self.tokens[row] for row in rows])
        segments, _ = padded([self.segments[row] for row in rows])
        labels = self.labels[torch.as_tensor(rows)]
        return [each.to(device) for each in (tokens, segments, mask, labels)]


def examples(pairs: data.Pairs, tokenizer: Any) -> Examples:
    """The pairs through a tokenizer."""
    return Examples(*tokenize(tokenizer, pairs.first, pairs.second), torch.tensor(pairs.labels))


def finetune(
    net: Encoder,
    train: Examples,
    test: Examples | None = None,
    *,
    rate: float = 5e-5,
    epochs: int = 3,
    batch: int = 32,
    warmup: float = 0.1,
    decay: float = 0.01,
    seed: int = 0,
    context: Callable = contextlib.nullcontext,
    scaler: Any = None,
) -> training.History:
    """Trains ``net`` in place by AdamW → ``training.History``; looks at ``test`` at the end of each
    epoch.

    The rate rises over the first ``warmup`` of all steps and falls linearly to 0. context, scaler:
    as :func:`ed_lib.training.train` has them. ValueError for a label that is no class of ``net``,
    and where there is nothing to train on.
    """
    check.count("epochs", epochs)
    check.count("batch", batch)
    classes = net.classes.out_features
    n = len(train.labels)
    check.shape("train.labels", tuple(train.labels.shape), (len(train.tokens),))
    found = {0, *train.labels.tolist()}
    least, most = min(found), max(found)
    if not 0 <= least <= most < classes:
        raise ValueError(f"labels run from {least} to {most}; wanted 0 to {classes - 1}")
    if not n:
        raise ValueError("train holds no pairs; wanted at least one")
    total = epochs * -(-n // batch)
    # Biases and layer norms do not decay, as in BERT.
    matrices = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, rate, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _rising_and_falling(total, warmup))

    def one_step(rows):
        *inputs, labels = train.batch(rows, net.classes.weight.device)
        with context():
            loss = F.cross_entropy(net(*inputs), labels)
        before = scaler.get_scale() if scaler else 0
        training.optimizer_step(loss, optimizer, scaler)
        # A scale falls when a step is skipped, and the rate waits for the step.
        if scaler is None or scaler.get_scale() >= before:
            schedule.step()
        return loss.detach()

    look = (lambda: accuracy(net, test, context)) if test else None
    return training.loop(one_step, n, look, epochs=epochs, batch=batch, seed=seed)


def _rising_and_falling(total, warmup):
    """What the rate is multiplied by at step n of ``total``."""
    rising = max(round(warmup * total), 1)
    falling = max(total - rising, 1)
    return lambda n: min((n + 1) / rising, (total - n) / falling)


@torch.no_grad()
def accuracy(
    net: Encoder, test: Examples, context: Callable = contextlib.nullcontext, batch: int = 64
) -> float:
    """The share of pairs whose largest score is that of their label."""
    right = 0
    check.shape("test.labels", tuple(test.labels.shape), (len(test.tokens),))
    for rows in alike(test.tokens, batch):
        *inputs, labels = test.batch(rows, net.classes.weight.device)
        with context():
            right += int((net(*inputs).argmax(1) == labels).sum())
    return right / len(test.labels)
