"""MNIST and Fashion-MNIST; and digits that need no network, for tests and quick looks.

Whichever way a data set came, ``load`` has checked its bytes against the SHA-256 of the published ones.
"""

import gzip
import hashlib
import os
import tempfile
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ed_lib import check
from ed_lib.arrays import DTYPES

TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
DIGITS = tuple("0123456789")
CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
CLASSES = {"mnist": DIGITS, "fashion-mnist": tuple(CLOTHES.split(","))}
MIRRORS = {
    "mnist": [
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ],
    "fashion-mnist": [
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ],
}
# In the order of Dataset's arrays; SHA256 of the decompressed bytes.
FILES = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
SHA256 = {
    "mnist": [
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ],
    "fashion-mnist": [
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ],
}
TIMEOUT = 5.0  # seconds that a mirror may stay silent


class DataError(ValueError):
    """A file that is not the published one."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images in grey levels 0 (background) to 255, and their classes 0 to 9. All arrays are uint8."""

    train_images: np.ndarray = field(repr=False)  # (60000, 28, 28); digits: (1437, 28, 28)
    train_labels: np.ndarray = field(repr=False)  # (60000,); digits: (1437,)
    test_images: np.ndarray = field(repr=False)  # (10000, 28, 28); digits: (360, 28, 28)
    test_labels: np.ndarray = field(repr=False)  # (10000,); digits: (360,)
    name: str  # "MNIST", "Fashion-MNIST" or "scikit-learn digits, resized to 28×28"
    classes: tuple[str, ...]  # the ten classes' names
    source: str  # "ED_DATA", "cache", "download" or "scikit-learn"


def load(name: str = "mnist", *, offline: bool = False) -> Dataset:
    """The :class:`Dataset` "mnist" or "fashion-mnist".

    From the folder $ED_DATA/<name> (four IDX files, gzip'ed or not), else from the user's cache, else from a
    mirror. With ``offline=True``: scikit-learn's 8×8 digits, resized, instead; says so in a line.

    ValueError for an unknown name; DataError (a ValueError) for a file that is not the published one;
    ConnectionError when there is no copy and none can be downloaded; FileNotFoundError when ED_DATA names no
    folder, or one with only some of the four files; ImportError when ED_DATA lacks the data set and pooch is
    not installed.
    """
    check.choice("name", name, TITLES)
    if offline:
        return _digits(TITLES[name])
    if folder := _ed_data(name):
        return _open(folder, name, "ED_DATA")
    if not _missing(_cache(name)):
        return _open(_cache(name), name, "cache")
    return _open(_download(name), name, "download")


def _open(folder, name, source):
    arrays = (_read(_copies(folder, file), sha256) for file, sha256 in zip(FILES, SHA256[name], strict=True))
    return Dataset(*arrays, TITLES[name], CLASSES[name], source)


def _copies(folder, file):
    return [path for path in (folder / f"{file}.gz", folder / file) if os.path.isfile(path)]


def _missing(folder):
    return [file for file in FILES if not _copies(folder, file)]


def _read(paths, sha256):
    """The values of the first of these IDX files that is as published, uint8, shaped as its header says."""
    try:
        content = _checked(paths[0].read_bytes(), sha256, paths[0])
    except DataError:
        if len(paths) == 1:
            raise
        return _read(paths[1:], sha256)
    # Two zero bytes, 8 for uint8, the number of dimensions, each dimension in four bytes, the values.
    shape = np.frombuffer(content, ">u4", count=content[3], offset=4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    return values.reshape(shape).copy()  # frombuffer's arrays are read-only


def _checked(content, sha256, place):
    """The decompressed content of a file, gzip'ed or not; DataError unless it is the published one."""
    problem = "is not the published file"
    if content.startswith(b"\x1f\x8b"):  # as all of gzip's
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error):
            problem = "cannot be decompressed"
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise DataError(f"{place} {problem}: SHA-256 {found}; wanted {sha256} once decompressed")
    return content


def _ed_data(name):
    if not os.environ.get("ED_DATA"):
        return None
    root = Path(os.environ["ED_DATA"])
    if not root.is_dir():
        raise FileNotFoundError(f"ED_DATA is {str(root)!r}; wanted a folder that holds {name}/")
    missing = _missing(root / name)
    if 0 < len(missing) < len(FILES):
        raise FileNotFoundError(f"ED_DATA: {root / name} lacks {', '.join(missing)} (.gz or not)")
    return None if missing else root / name


def _pooch():
    """The module pooch, which knows the user's cache and downloads into it."""
    try:
        with warnings.catch_warnings():  # it asks for Jupyter's widgets, which it does without
            warnings.simplefilter("ignore")
            import pooch
    except ImportError as error:
        raise ImportError(f"Without ED_DATA, data needs pooch: pip install pooch ({error})") from error
    return pooch


def _cache(name):
    return Path(_pooch().os_cache("ed_lib")) / name


def _download(name):
    """Fetch what the cache lacks, from the first mirror that serves it, and return the folder."""
    import requests

    folder, wrong, failure = _cache(name), None, "none was tried"
    folder.mkdir(parents=True, exist_ok=True)
    for mirror in 2 * MIRRORS[name]:
        try:
            for file in _missing(folder):
                _fetch(f"{mirror}{file}.gz", folder / f"{file}.gz", SHA256[name][FILES.index(file)])
            return folder
        except requests.RequestException as error:  # refused, cut off or timed out
            failure = type(error).__name__
        except DataError as error:
            wrong = error
    raise wrong or ConnectionError(
        f"No download of {TITLES[name]} ({failure}), and no copy: let ED_DATA name a folder with {name}/, or "
        f"connect once"
    )


def _fetch(url, path, sha256):
    """Downloads a file whole and as published, or raises and leaves none."""
    get = _pooch().HTTPDownloader(progressbar=True, chunk_size=65536, timeout=TIMEOUT)
    with tempfile.TemporaryDirectory(dir=path.parent) as beside:
        part = Path(beside) / path.name
        get(url, str(part), None)
        _checked(part.read_bytes(), sha256, url)
        part.replace(path)


def _digits(title):
    """scikit-learn's digits as a Dataset: 20×20 pixels in a frame of 4, as in MNIST. Not shuffled."""
    from scipy.ndimage import zoom
    from sklearn.datasets import load_digits

    print(f"Offline: scikit-learn's 8×8 digits, resized to 28×28, instead of {title}.")
    digits = load_digits()
    images = zoom(digits.images * (255 / 16), (1, 2.5, 2.5), order=1)  # (1797, 8, 8) → (1797, 20, 20)
    images = np.pad(images.round().astype(np.uint8), ((0, 0), (4, 4), (4, 4)))  # → (1797, 28, 28)
    labels = digits.target.astype(np.uint8)
    name = "scikit-learn digits, resized to 28×28"
    return Dataset(images[:1437], labels[:1437], images[1437:], labels[1437:], name, DIGITS, "scikit-learn")


def as_inputs(images: np.ndarray, dtype: str = "float32") -> np.ndarray:
    """uint8 images (N, 28, 28) as a network's inputs (N, 784), from 0 to 1, in "float32" or "float64".

    TypeError for images that are no NumPy array of uint8; ValueError for another shape or dtype.
    """
    check.choice("dtype", dtype, DTYPES)
    if getattr(images, "dtype", None) != np.uint8:
        came = f"{type(images).__name__} of {getattr(images, 'dtype', 'no dtype')}"
        raise TypeError(f"images is a {came}; wanted a NumPy array of uint8")
    check.shape("images", images.shape, ("N", 28, 28))
    return np.divide(images.reshape(-1, 784), 255, dtype=dtype)  # (N, 28, 28) → (N, 784)


def tensors(images: np.ndarray, labels: np.ndarray, dtype: str = "float32") -> tuple:
    """uint8 images (N, 28, 28) and labels (N,) → tensors (N, 1, 28, 28) from 0 to 1, and (N,) of int64."""
    import torch

    x = torch.from_numpy(as_inputs(images, dtype)).view(-1, 1, 28, 28)  # (N, 784) → (N, 1, 28, 28)
    return x, torch.from_numpy(labels).long()


def one_hot(labels: np.ndarray, n_classes: int = 10, dtype: str = "float32") -> np.ndarray:
    """Integer labels (N,) as rows (N, n_classes), 1 at the label and 0 elsewhere, in "float32" or "float64".

    TypeError for labels that are no integers; ValueError for one outside 0 to n_classes − 1.
    """
    check.choice("dtype", dtype, DTYPES)
    labels, n_classes = _check_labels(labels), check.count("n_classes", n_classes)
    if not 0 <= labels.min() <= labels.max() < n_classes:
        raise ValueError(f"labels runs from {labels.min()} to {labels.max()}; wanted 0 to {n_classes - 1}")
    rows = np.zeros((len(labels), n_classes), dtype)  # (N, n_classes)
    rows[np.arange(len(labels)), labels] = 1
    return rows


def pick(images: np.ndarray, labels: np.ndarray, classes: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """The images (N, …) and labels (N,) of some classes only, in the same order: (M, …) and (M,).

    The labels returned count from 0 in the order of ``classes``, with the dtype they came in. TypeError for
    labels or classes that are no integers; ValueError for classes that are repeated or do not occur, or for
    lengths that differ.
    """
    labels = _check_labels(labels)
    if np.shape(images)[:1] != labels.shape:
        raise ValueError(f"images has the shape {np.shape(images)}; wanted one per label, {len(labels)}")
    classes = [check.count("classes", c, least=0) for c in classes]
    if not classes or len(set(classes)) < len(classes) or not np.isin(classes, labels).all():
        raise ValueError(f"classes is {classes}; wanted different ones among {np.unique(labels).tolist()}")
    matches = labels[:, None] == classes  # (N, len(classes))
    kept = matches.any(axis=1)  # (N,)
    return np.asarray(images)[kept], matches[kept].argmax(axis=1).astype(labels.dtype)


def batches(n: int, size: int, *, seed: int) -> Iterator[np.ndarray]:
    """Index arrays (size,), int64, that together cover range(n) once, in an order set by ``seed``.

    The last is shorter when size does not divide n.
    """
    order = np.random.default_rng(seed).permutation(n)  # (n,)
    return (order[i : i + size] for i in range(0, n, size))


def _check_labels(labels):
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"labels is an array of {labels.dtype}; wanted integers")
    check.shape("labels", labels.shape, ("N",))
    return labels
