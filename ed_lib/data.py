"""Images, texts and pairs of sentences to learn from. MNIST, Fashion-MNIST and tiny Shakespeare are
part of the package, the first two as samples, so that a chapter computes the same everywhere.
"""

import hashlib
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ed_lib import check, published

SAMPLES = Path(__file__).with_name("samples")
# Of each file in that folder the bytes and the SHA-256, both decompressed. Its README tells where
# they are from, and under which licence.
SAMPLE = {
    "mnist": (
        11618048,
        "d5fae658da5ed113712ed7d807da92a688dbd6ce5247900aa44b52329c0e879a",
    ),
    "fashion-mnist": (
        11618048,
        "23631acc9def0fa0e29c04e7b96b5eda527e7b6b8f620b57acba5dcb673660b1",
    ),
    "tinyshakespeare": (
        1115394,
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
}
TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
SICK_LABELS = ("CONTRADICTION", "ENTAILMENT", "NEUTRAL")


class Dataset(NamedTuple):
    """Images in grey levels, 0 (background) to 255, and their classes, 0 to 9: arrays of uint8."""

    train_images: np.ndarray  # (12800, 28, 28); of the whole set (60000, 28, 28)
    train_labels: np.ndarray  # (12800,)
    test_images: np.ndarray  # (2000, 28, 28); of the whole set (10000, 28, 28)
    test_labels: np.ndarray  # (2000,)
    name: str  # "MNIST" or "Fashion-MNIST"
    classes: tuple[str, ...]  # the ten classes' names


def load(name: str = "mnist", *, whole: bool = False) -> Dataset:
    """The :class:`Dataset` "mnist" or "fashion-mnist": its first 12,800 and 2,000 images, which the
    package holds. ``whole``: the published set, with :func:`published.find`'s errors. ValueError
    for an unknown name.
    """
    check.choice("name", name, TITLES)
    if whole:
        contents = [published.find(name, file)[1] for file in published.SETS[name][1]]
    else:
        contents = [_sample(name)]
    train, labels, test, answers = (array for content in contents for array in _arrays(content))
    classes = tuple("0123456789" if name == "mnist" else CLOTHES.split(","))
    return Dataset(train, labels, test, answers, TITLES[name], classes)


def _sample(name):
    """The content of a file of the package."""
    path = SAMPLES / f"{name}.xz"
    size, sha256 = SAMPLE[name]
    try:
        # A byte more than there is, and no more.
        content = lzma.LZMADecompressor().decompress(path.read_bytes(), max_length=size + 1)
    except lzma.LZMAError as error:
        raise published.DataError(f"{path} cannot be decompressed: {error}") from error
    return published.checked(content, size, sha256, path)


def _arrays(content):
    """The arrays of IDX files, one after another: two zero bytes, 8 for uint8, how many dimensions,
    four bytes for each, and the values.
    """
    at = 0
    while at < len(content):
        dimensions = content[at + 3]
        shape = np.frombuffer(content, ">u4", count=dimensions, offset=at + 4)
        at += 4 + 4 * dimensions
        values = np.frombuffer(content, np.uint8, count=int(shape.prod()), offset=at)
        at += values.size
        # A copy, since bytes cannot be written, and PyTorch warns of arrays that cannot.
        yield values.reshape(shape).copy()


def as_inputs(images: np.ndarray, dtype: str = "float32") -> np.ndarray:
    """uint8 images (N, 28, 28) as a network's inputs (N, 784), from 0 to 1; TypeError for another
    dtype.
    """
    if getattr(images, "dtype", None) != np.uint8:
        raise TypeError(f"images is a {type(images).__name__}; wanted a NumPy array of uint8")
    check.shape("images", images.shape, ("N", 28, 28))
    return np.divide(images.reshape(-1, 784), 255, dtype=dtype)


def tensors(images: np.ndarray, labels: np.ndarray, dtype: str = "float32") -> tuple:
    """uint8 images (N, 28, 28), labels (N,) → tensors (N, 1, 28, 28) from 0 to 1, (N,) of int64."""
    x = torch.from_numpy(as_inputs(images, dtype)).view(-1, 1, 28, 28)
    return x, torch.from_numpy(labels).long()


def one_hot(labels: np.ndarray, n_classes: int = 10, dtype: str = "float32") -> np.ndarray:
    """Labels (N,), integers from 0 to n_classes − 1, as rows (N, n_classes): 1 at the label, else
    0.
    """
    found = np.unique(labels)
    fits = not found.size or 0 <= found[0] <= found[-1] < n_classes
    if found.dtype.kind not in "iu" or not fits:
        raise ValueError(f"labels has {found.tolist()}; wanted integers from 0 to {n_classes - 1}")
    return np.eye(n_classes, dtype=dtype)[np.asarray(labels)]


def pick(
    images: np.ndarray, labels: np.ndarray, classes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The images (N, …) and labels (N,) of some classes only, (M, …) and (M,). The labels count
    from 0 in the order of ``classes``. ValueError for classes that are repeated or do not occur.
    """
    are_different = len(set(classes)) == len(classes) > 0
    if not are_different or not np.isin(classes, labels).all():
        there = np.unique(labels).tolist()
        raise ValueError(f"classes is {classes}; wanted different ones among {there}")
    matches = labels[:, None] == classes  # (N, len(classes))
    kept = matches.any(axis=1)  # (N,)
    return images[kept], matches[kept].argmax(axis=1).astype(labels.dtype)


def batches(n: int, size: int, *, seed: int) -> Iterator[np.ndarray]:
    """Index arrays (size,), the last maybe shorter, that cover range(n) once, by ``seed``."""
    check.count("n", n, least=0)
    check.count("size", size)
    order = np.random.default_rng(seed).permutation(n)  # (n,), int64
    return (order[i : i + size] for i in range(0, n, size))


class Text(NamedTuple):
    """A text as numbers of its characters, (N,) int64: nine tenths to learn, the last to test."""

    train: torch.Tensor
    held_out: torch.Tensor
    characters: str  # all that occur, sorted: number k is characters[k]


def text() -> Text:
    """A :class:`Text`: tiny Shakespeare, of A. Karpathy's char-rnn, whole, from the package."""
    content = _sample("tinyshakespeare").decode()
    characters = "".join(sorted(set(content)))
    number_of = {character: number for number, character in enumerate(characters)}
    numbers = torch.tensor([number_of[character] for character in content])  # (N,)
    cut = len(numbers) * 9 // 10
    return Text(numbers[:cut], numbers[cut:], characters)


def stretches(numbers: torch.Tensor, batch: int, steps: int, *, seed: int) -> Iterator[tuple]:
    """Without end: x and what follows each of its characters, (T, B) each, from places drawn by
    ``seed``.
    """
    if len(numbers) <= steps:
        there = len(numbers)
        raise ValueError(f"steps is {steps}; wanted fewer than the text's {there} characters")
    draw = torch.Generator().manual_seed(seed)
    span = torch.arange(steps)[:, None]  # (T, 1)
    while True:
        # The last character has none that follows.
        starts = torch.randint(len(numbers) - steps, (batch,), generator=draw)  # (B,)
        places = starts + span  # (T, B)
        yield numbers[places], numbers[places + 1]


class Pairs(NamedTuple):
    """N pairs of sentences: labels are places in SICK_LABELS; people rated relatedness, 1 to 5."""

    first: list[str]
    second: list[str]
    labels: list[int]
    relatedness: list[float]


def sick() -> tuple[Pairs, Pairs]:
    """SICK (M. Marelli and others 2014), 9,927 pairs: to learn from, and about a fifth held out.
    Does the first sentence entail the second, contradict it, or neither? Errors as
    :func:`published.find`'s: its licence does not let it be part of the package.
    """
    _, content = published.find("sick", "SICK.txt")
    parts = Pairs([], [], [], []), Pairs([], [], [], [])
    # The first line names the columns.
    for line in content.decode().splitlines()[1:]:
        _, first, second, relatedness, label = line.split("\t")
        # By its sentences, in either order: a pair that stands twice, or turned, stays in one part.
        both = "\n".join(sorted([first, second]))
        is_held_out = int(hashlib.sha256(both.encode()).hexdigest(), 16) % 5 == 0
        part = parts[is_held_out]
        part.first.append(first)
        part.second.append(second)
        part.labels.append(SICK_LABELS.index(label))
        part.relatedness.append(float(relatedness))
    return parts


def minilm(file: str) -> Path:
    """Where a file of all-MiniLM-L6-v2 is: "model.safetensors" or "tokenizer.json". Errors as
    :func:`published.find`'s.
    """
    return published.find("minilm", file)[0]
