"""Data sets and texts that others have published, and digits that need no network. A file is looked
for in $ED_DATA/<set>/, then in the user's cache, then downloaded there; its content's SHA-256 is
always checked.
"""

import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ed_lib import check

# A paragraph for each set: its name and its address; of each file the bytes and the SHA-256, both
# decompressed. Images stand in the order of Dataset.
PUBLISHED = """
mnist https://ossci-datasets.s3.amazonaws.com/mnist/{}.gz
train-images-idx3-ubyte 47040016 ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
train-labels-idx1-ubyte 60008 65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
t10k-images-idx3-ubyte 7840016 0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
t10k-labels-idx1-ubyte 10008 ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2

fashion-mnist http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{}.gz
train-images-idx3-ubyte 47040016 c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
train-labels-idx1-ubyte 60008 bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
t10k-images-idx3-ubyte 7840016 5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
t10k-labels-idx1-ubyte 10008 0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34

tinyshakespeare https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/{}
input.txt 1115394 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed

sick https://raw.githubusercontent.com/praguna/sick_dataset/a35d440f028175a4c774a19e9d6ef02c3a6f9e06/{}
SICK.txt 1118382 3de6211d6cee83b1b444c1205da36bd18e6cabf5b4debfc24995b1510b796878

minilm https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/resolve/main/{}
model.safetensors 90868376 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
tokenizer.json 466247 be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037
"""


def _set(paragraph):
    """A set's name, and (its address, {file: (bytes, SHA-256)})."""
    head, *rows = (line.split() for line in paragraph.splitlines())
    name, address = head
    return name, (address, {file: (int(size), sha256) for file, size, sha256 in rows})


SETS = dict(_set(paragraph) for paragraph in PUBLISHED.strip().split("\n\n"))
GZIP = b"\x1f\x8b"  # how a compressed file begins
TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
SICK_LABELS = ("CONTRADICTION", "ENTAILMENT", "NEUTRAL")


class DataError(ValueError):
    """A file that is not the published one."""


def published(name: str, file: str) -> tuple[Path, bytes]:
    """Where this file of a set is, and its decompressed content. ValueError for an unknown one;
    DataError if it is not the published one, FileNotFoundError if ED_DATA names no folder,
    ConnectionError if no copy can be had, or kept.
    """
    import pooch

    check.choice("name", name, SETS)
    check.choice("file", file, SETS[name][1])
    mine = os.environ.get("ED_DATA")
    if mine and not os.path.isdir(mine):
        raise FileNotFoundError(f"ED_DATA is {mine!r}; wanted a folder that holds {name}/")
    url = SETS[name][0].format(file)
    cache = Path(pooch.os_cache("ed_lib"), name)
    folders = [Path(mine, name), cache] if mine else [cache]
    for folder in folders:
        # Decompressed, or as it is at its address.
        for path in (folder / file, folder / Path(url).name):
            if os.path.isfile(path):  # False too where one may not look
                return path, _content(path, path, name, file)
    return _downloaded(url, cache / Path(url).name, name, file)


def _downloaded(url, path, name, file):
    """What :func:`published` returns, from the file's address, kept at ``path``."""
    import pooch

    otherwise = f"let ED_DATA name a folder with {name}/"
    # The cache may be read-only, or no folder.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = tempfile.TemporaryDirectory(dir=path.parent)
    except OSError as error:
        what = f"No copy of {name}/{file}, and none can be kept in {path.parent}"
        raise ConnectionError(f"{what} ({type(error).__name__}): {otherwise}") from error
    # Only what is whole and sound gets the file's name.
    with beside:
        part = Path(beside.name, path.name)
        try:
            pooch.HTTPDownloader(progressbar=True, timeout=5)(url, str(part), None)
        # Refused, cut off or timed out.
        except OSError as error:
            what = f"No download of {name}/{file} ({type(error).__name__}), and no copy"
            raise ConnectionError(f"{what}: {otherwise}, or connect once") from error
        content = _content(part, url, name, file)
        part.replace(path)
    return path, content


def _content(path, source, name, file):
    """What a file holds once decompressed, and of one that expands further a single byte more."""
    size, sha256 = SETS[name][1][file]
    with open(path, "rb") as stream:
        is_zipped = stream.peek(2)[:2] == GZIP
        reader = gzip.GzipFile(fileobj=stream) if is_zipped else stream
        try:
            # No more than that: a file of a few KB can expand to fill a disk.
            content = reader.read(size + 1)
            problem = "is longer than" if len(content) > size else "is not"
        except (gzip.BadGzipFile, EOFError, zlib.error):
            content = path.read_bytes()
            problem = "cannot be decompressed, and is not"
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(f"{source} {problem} the published file: SHA-256 {found}; wanted {sha256}")
    return content


class Dataset(NamedTuple):
    """Images in grey levels, 0 (background) to 255, and their classes, 0 to 9: arrays of uint8."""

    train_images: np.ndarray  # (60000, 28, 28); digits: (1437, 28, 28)
    train_labels: np.ndarray  # (60000,)
    test_images: np.ndarray  # (10000, 28, 28); digits: (360, 28, 28)
    test_labels: np.ndarray  # (10000,)
    name: str  # "MNIST", "Fashion-MNIST" or "scikit-learn digits, resized to 28×28"
    classes: tuple[str, ...]  # the ten classes' names


def load(name: str = "mnist", *, offline: bool = False) -> Dataset:
    """The :class:`Dataset` "mnist" or "fashion-mnist"; ``offline``: scikit-learn's 8×8 digits,
    resized, instead, and a line that says so. ValueError for an unknown name; else
    :func:`published`'s errors.
    """
    check.choice("name", name, TITLES)
    if offline:
        print(f"Offline: scikit-learn's 8×8 digits, resized to 28×28, instead of {TITLES[name]}.")
        return _digits()
    train, labels, test, answers = (_idx(published(name, file)[1]) for file in SETS[name][1])
    classes = tuple("0123456789" if name == "mnist" else CLOTHES.split(","))
    return Dataset(train, labels, test, answers, TITLES[name], classes)


def _idx(content):
    """Two zero bytes, 8 for uint8, how many dimensions, four bytes for each, values → an array."""
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", count=dimensions, offset=4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    # A copy, since bytes cannot be written, and PyTorch warns of arrays that cannot.
    return values.reshape(shape).copy()


def _digits():
    """scikit-learn's digits, not shuffled: 20×20 pixels in a frame of 4, as MNIST has them."""
    from scipy.ndimage import zoom
    from sklearn.datasets import load_digits

    digits = load_digits()
    # Grey levels 0 to 16, (1797, 8, 8) → 0 to 255, (1797, 20, 20)
    images = zoom(digits.images * (255 / 16), (1, 2.5, 2.5), order=1)
    # → (1797, 28, 28)
    images = np.pad(images.round().astype(np.uint8), ((0, 0), (4, 4), (4, 4)))
    labels = digits.target.astype(np.uint8)
    cut = 1437  # four fifths
    parts = images[:cut], labels[:cut], images[cut:], labels[cut:]
    return Dataset(*parts, "scikit-learn digits, resized to 28×28", tuple("0123456789"))


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


def text(name: str = "tinyshakespeare") -> Text:
    """A :class:`Text`: tiny Shakespeare, of A. Karpathy's char-rnn. Errors as :func:`load`'s."""
    check.choice("name", name, ("tinyshakespeare",))
    content = published(name, "input.txt")[1].decode()
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
    Does the first sentence entail the second, contradict it, or neither?
    """
    _, content = published("sick", "SICK.txt")
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
    """Where a file of all-MiniLM-L6-v2 is: "model.safetensors" or "tokenizer.json"."""
    return published("minilm", file)[0]
