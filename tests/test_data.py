"""ed_lib.data: on tiny IDX files and a loopback server; on the real data sets where ED_DATA names them."""

import gzip
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from tqdm import tqdm

from ed_lib import data

pooch = pytest.importorskip("pooch")
REAL = os.environ.get("ED_DATA")  # read before the fixture below hides it
needs_real_data = pytest.mark.skipif(not REAL, reason="ED_DATA names no folder with MNIST and Fashion-MNIST")
SPOILT = {  # what can happen to a file: its name's ending, and what becomes of its bytes
    "altered": (".gz", lambda idx: gzip.compress(idx[:-1] + bytes([idx[-1] ^ 1]))),
    "truncated": (".gz", lambda idx: gzip.compress(idx)[:-20]),
    "overwritten": (".gz", lambda idx: gzip.compress(idx)[:12] + b"????" + gzip.compress(idx)[16:]),
    "no gzip": (".gz", lambda idx: b"<html>Please log in</html>"),
    "empty": (".gz", lambda idx: b""),
    "raw, altered": ("", lambda idx: idx[:-1] + bytes([idx[-1] ^ 1])),
    "raw, truncated": ("", lambda idx: idx[:-1]),
    "raw, empty": ("", lambda idx: b""),
}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def idx(array):
    """An array as the bytes of an IDX file."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def write(folder, contents, ending=".gz"):
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        (folder / (file + ending)).write_bytes(gzip.compress(content) if ending else content)


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Away from the user's cache, the temporary folder, proxies and the network. Returns the cache."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.delenv("ED_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setattr(data, "MIRRORS", {"mnist": [], "fashion-mnist": []})
    return tmp_path / "cache" / "ed_lib"


@pytest.fixture
def arrays():
    """The four arrays of a tiny data set, in Dataset's order."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, top, shape) for n in (6, 3) for top, shape in ((256, (n, 28, 28)), (10, n))]


@pytest.fixture
def tiny(arrays, monkeypatch):
    """That data set, published as "mnist": file name → bytes."""
    contents = {file: idx(array) for file, array in zip(data.FILES, arrays, strict=True)}
    monkeypatch.setitem(data.SHA256, "mnist", [sha256(content) for content in contents.values()])
    return contents


class Mirror(ThreadingHTTPServer):
    """Serves files. `faults` lists how it misbehaves at each GET; the last of them goes on for good."""

    def __init__(self, contents, faults=("serve",)):
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents = {f"/{file}.gz": gzip.compress(content, mtime=0) for file, content in contents.items()}
        self.faults, self.asked, self.released = list(faults), [], threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self):
        self.released.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.server.faults == ["hang"]:
            self.server.released.wait()
        self.server.asked.append(self.path.strip("/"))
        faults, body = self.server.faults, self.server.contents[self.path]
        fault = faults.pop(0) if len(faults) > 1 else faults[0]
        if fault == "wrong":
            body = b"<html>Please log in</html>"
        self.send_response(404 if fault == "missing" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if fault in ("cut", "stall") else body)
        if fault == "stall" and not self.server.released.wait(10):
            self.wfile.write(body[len(body) // 2 :])  # somebody waited for it

    def log_message(self, *args):
        pass


@pytest.fixture
def mirrors(tiny, monkeypatch):
    """Start one mirror for each list of faults, and have data.load use them in that order."""
    started = []

    def start(*faults):
        started.extend(Mirror(tiny, f) for f in faults)
        monkeypatch.setitem(data.MIRRORS, "mnist", [mirror.url for mirror in started])
        return started

    yield start
    for mirror in started:
        mirror.stop()


@pytest.fixture
def assert_tiny(arrays):
    def check(dataset, source):
        loaded = [dataset.train_images, dataset.train_labels, dataset.test_images, dataset.test_labels]
        for got, wanted in zip(loaded, arrays, strict=True):
            assert got.dtype == np.uint8 and got.flags.writeable  # torch.from_numpy warns of read-only arrays
            np.testing.assert_array_equal(got, wanted)
        assert (dataset.name, dataset.source) == ("MNIST", source)
        assert dataset.classes == tuple("0123456789")

    return check


# The real data sets -------------------------------------------------------------------------------


@pytest.mark.oracle
@needs_real_data
def test_real_mnist(monkeypatch):
    monkeypatch.setenv("ED_DATA", REAL)
    mnist = data.load("mnist")
    assert mnist.train_images.shape == (60000, 28, 28) and mnist.test_images.shape == (10000, 28, 28)
    assert mnist.train_images.dtype == mnist.train_labels.dtype == np.uint8
    assert mnist.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # as commonly reported
    assert np.bincount(mnist.train_labels).tolist() == counts
    # The mean and standard deviation that everybody normalises MNIST with.
    inputs = data.as_inputs(mnist.train_images, "float64")
    assert (inputs.mean().round(4), inputs.std().round(4)) == (0.1307, 0.3081)
    assert (mnist.name, mnist.source) == ("MNIST", "ED_DATA")


@pytest.mark.oracle
@needs_real_data
def test_real_fashion_mnist(monkeypatch):
    monkeypatch.setenv("ED_DATA", REAL)
    fashion = data.load("fashion-mnist")
    assert fashion.train_images.shape == (60000, 28, 28) and fashion.test_images.shape == (10000, 28, 28)
    assert np.bincount(fashion.train_labels).tolist() == [6000] * 10
    assert np.bincount(fashion.test_labels).tolist() == [1000] * 10
    assert fashion.classes[fashion.train_labels[0]] == "Ankle boot" and len(fashion.classes) == 10
    assert (data.as_inputs(fashion.train_images, "float64").mean().round(4)) == 0.2860
    assert (fashion.name, fashion.source) == ("Fashion-MNIST", "ED_DATA")


# Where load looks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".gz", ""])
def test_loads_from_ed_data(tiny, assert_tiny, tmp_path, monkeypatch, ending):
    write(tmp_path / "mnist", tiny, ending)
    monkeypatch.setenv("ED_DATA", str(tmp_path))
    assert_tiny(data.load("mnist"), "ED_DATA")


@pytest.mark.parametrize("ending", [".gz", ""])
def test_loads_from_the_cache(tiny, assert_tiny, cache, ending):
    write(cache / "mnist", tiny, ending)
    assert_tiny(data.load("mnist"), "cache")


def test_ed_data_comes_first_and_mirrors_last(tiny, assert_tiny, cache, mirrors, monkeypatch):
    (mirror,) = mirrors(["serve"])
    write(cache / "mnist", tiny)
    assert_tiny(data.load("mnist"), "cache")
    write(cache / "copy" / "mnist", tiny)
    monkeypatch.setenv("ED_DATA", str(cache / "copy"))
    assert_tiny(data.load("mnist"), "ED_DATA")
    assert mirror.asked == []


def test_ed_data_without_this_set_leaves_it_to_the_cache(tiny, assert_tiny, cache, tmp_path, monkeypatch):
    write(tmp_path / "mine" / "fashion-mnist", tiny)
    write(cache / "mnist", tiny)
    monkeypatch.setenv("ED_DATA", str(tmp_path / "mine"))
    assert_tiny(data.load("mnist"), "cache")


def test_empty_ed_data_counts_as_not_set(tiny, assert_tiny, cache, monkeypatch):
    write(cache / "mnist", tiny)
    monkeypatch.setenv("ED_DATA", "")
    assert_tiny(data.load("mnist"), "cache")


def test_ed_data_that_is_no_folder_is_an_error(tiny, cache, tmp_path, monkeypatch):
    write(cache / "mnist", tiny)
    monkeypatch.setenv("ED_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="ED_DATA is .*nowhere"):
        data.load("mnist")


def test_ed_data_with_some_of_the_files_is_an_error_that_names_the_others(tiny, cache, tmp_path, monkeypatch):
    write(cache / "mnist", tiny)
    write(tmp_path / "mnist", {file: tiny[file] for file in data.FILES[:3]})
    monkeypatch.setenv("ED_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="lacks t10k-labels-idx1-ubyte "):
        data.load("mnist")


def test_unknown_name():
    with pytest.raises(ValueError, match="name is 'MNIST'; wanted one of 'mnist', 'fashion-mnist'"):
        data.load("MNIST")


# Files that are not the published ones ------------------------------------------------------------


@pytest.mark.parametrize("damage", SPOILT)
@pytest.mark.parametrize("place", ["ED_DATA", "cache"])
@pytest.mark.parametrize("file", [data.FILES[0], data.FILES[3]])
def test_a_spoilt_file_is_an_error(tiny, mirrors, cache, tmp_path, monkeypatch, damage, place, file):
    (mirror,) = mirrors(["serve"])
    ending, spoil = SPOILT[damage]
    folder = (cache if place == "cache" else tmp_path) / "mnist"
    write(folder, tiny, ending)
    spoilt = folder / (file + ending)
    spoilt.write_bytes(spoil(tiny[file]))
    if place == "ED_DATA":
        monkeypatch.setenv("ED_DATA", str(tmp_path))

    before = spoilt.read_bytes()
    with pytest.raises(data.DataError) as caught:
        data.load("mnist")
    message, wanted = str(caught.value), sha256(tiny[file])
    undecodable = damage in ("truncated", "overwritten")
    found = sha256(gzip.decompress(before) if damage == "altered" else before)
    assert str(spoilt) in message and wanted in message and found in message
    assert ("cannot be decompressed" in message) == undecodable
    assert spoilt.read_bytes() == before and mirror.asked == []  # no silent download in its place


@pytest.mark.parametrize("damage", [damage for damage, (ending, _) in SPOILT.items() if ending])
def test_a_spoilt_file_beside_a_good_one_does_no_harm(tiny, assert_tiny, cache, damage):
    write(cache / "mnist", tiny, ending="")
    (cache / "mnist" / f"{data.FILES[1]}.gz").write_bytes(SPOILT[damage][1](tiny[data.FILES[1]]))
    assert_tiny(data.load("mnist"), "cache")


def test_the_hash_in_force_is_that_of_the_data_set(tiny, cache):
    write(cache / "fashion-mnist", tiny)  # sound IDX files, but not Fashion-MNIST
    with pytest.raises(data.DataError, match=data.SHA256["fashion-mnist"][0]):
        data.load("fashion-mnist")


# Downloads ----------------------------------------------------------------------------------------


def test_downloads_once_then_reads_the_cache(mirrors, assert_tiny, cache):
    (mirror,) = mirrors(["serve"])
    assert_tiny(data.load("mnist"), "download")
    assert_tiny(data.load("mnist"), "cache")
    assert mirror.asked == [f"{file}.gz" for file in data.FILES]
    assert files_in(cache / "mnist") == sorted(mirror.asked)


def test_a_download_shows_its_progress_and_no_local_folder(mirrors, cache, monkeypatch, capsys):
    mirrors(["serve"])
    monkeypatch.setattr("pooch.downloaders.tqdm", partial(tqdm, disable=False))  # our tests turn it off
    data.load("mnist")
    out, err = capsys.readouterr()
    assert err.count("100%") >= 4 and out == "" and str(cache) not in err


def test_downloads_only_what_the_cache_lacks(tiny, mirrors, assert_tiny, cache):
    (mirror,) = mirrors(["serve"])
    write(cache / "mnist", {file: tiny[file] for file in data.FILES[:2]}, ending="")
    assert_tiny(data.load("mnist"), "download")
    assert mirror.asked == [f"{file}.gz" for file in data.FILES[2:]]


@pytest.mark.parametrize("fault", ["cut", "wrong", "missing"])
def test_tries_again_after_a_fault(mirrors, assert_tiny, fault):
    (mirror,) = mirrors([fault, "serve"])
    assert_tiny(data.load("mnist"), "download")
    assert Counter(mirror.asked)[f"{data.FILES[0]}.gz"] == 2


@pytest.mark.parametrize("fault", ["cut", "wrong", "missing"])
def test_goes_on_to_the_next_mirror(mirrors, assert_tiny, fault):
    first, second = mirrors(["serve", fault], ["serve"])
    assert_tiny(data.load("mnist"), "download")
    assert second.asked == [f"{file}.gz" for file in data.FILES[1:]]  # the first file is there already


def test_passes_over_a_mirror_that_is_not_there(mirrors, assert_tiny):
    first, second = mirrors(["serve"], ["serve"])
    first.stop()
    assert_tiny(data.load("mnist"), "download")
    assert len(second.asked) == 4


@pytest.mark.parametrize("fault, error", [("cut", "ChunkedEncodingError"), ("missing", "HTTPError")])
def test_a_failed_download_leaves_no_file(mirrors, assert_tiny, cache, fault, error):
    first, second = mirrors([fault], [fault])
    with pytest.raises(ConnectionError, match=rf"No download of MNIST \({error}\), and no copy"):
        data.load("mnist")
    assert files_in(cache) == [] and len(first.asked) == len(second.asked) == 2
    second.faults = ["serve"]
    assert_tiny(data.load("mnist"), "download")


def test_a_wrong_download_is_an_error_and_leaves_no_file(mirrors, cache):
    wrong, cut = mirrors(["wrong"], ["cut"])
    with pytest.raises(data.DataError) as caught:
        data.load("mnist")
    message, found = str(caught.value), sha256(b"<html>Please log in</html>")
    assert f"{wrong.url}{data.FILES[0]}.gz is not the published file" in message
    assert data.SHA256["mnist"][0] in message and found in message
    assert files_in(cache) == [] and wrong.asked


def test_a_spoilt_file_is_an_error_even_when_others_are_downloaded(tiny, mirrors, cache):
    mirrors(["serve"])
    write(cache / "mnist", {data.FILES[0]: b"spoilt"})
    with pytest.raises(data.DataError, match=data.FILES[0]):
        data.load("mnist")
    assert gzip.decompress((cache / "mnist" / f"{data.FILES[0]}.gz").read_bytes()) == b"spoilt"


# No network ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, title", [("mnist", "MNIST"), ("fashion-mnist", "Fashion-MNIST")])
def test_no_network_and_no_copy_is_an_error_that_says_what_to_do(monkeypatch, cache, name, title):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        url = f"http://127.0.0.1:{closed.server_port}/"
    monkeypatch.setitem(data.MIRRORS, name, [url])
    with pytest.raises(
        ConnectionError,
        match=rf"No download of {title} \(ConnectionError\), and no copy: let ED_DATA .* {name}/",
    ):
        data.load(name)
    assert files_in(cache) == []


def test_a_mirror_that_hangs_counts_as_no_network(mirrors, monkeypatch):
    monkeypatch.setattr(data, "TIMEOUT", 0.1)
    (mirror,) = mirrors(["hang"])
    with pytest.raises(ConnectionError, match=r"\(ReadTimeout\)"):
        data.load("mnist")
    assert mirror.asked == []


def test_a_mirror_that_stalls_halfway_is_given_up(mirrors, assert_tiny, cache, monkeypatch):
    monkeypatch.setattr(data, "TIMEOUT", 0.5)
    stalled, sound = mirrors(["stall"], ["serve"])
    assert_tiny(data.load("mnist"), "download")
    assert len(stalled.asked) == 1 and len(sound.asked) == len(files_in(cache)) == 4


def test_digits_only_where_they_are_asked_for(tiny, mirrors, tmp_path, monkeypatch, capsys):
    (mirror,) = mirrors(["serve"])
    write(tmp_path / "mnist", tiny)
    monkeypatch.setenv("ED_DATA", str(tmp_path))
    assert data.load("mnist", offline=True).source == "scikit-learn"
    assert data.load("fashion-mnist", offline=True).classes == tuple("0123456789")
    said = "Offline: scikit-learn's 8×8 digits, resized to 28×28, instead of {}.\n"
    assert capsys.readouterr().out == said.format("MNIST") + said.format("Fashion-MNIST")
    assert mirror.asked == []


@pytest.mark.oracle
def test_digits_look_like_mnist():
    digits = data.load(offline=True)
    assert digits.train_images.shape == (1437, 28, 28) and digits.train_labels.shape == (1437,)
    assert digits.test_images.shape == (360, 28, 28) and digits.test_labels.shape == (360,)
    assert digits.train_images.dtype == digits.test_labels.dtype == np.uint8
    assert digits.train_images.min() == 0 and digits.train_images.max() == 255
    assert not digits.train_images[:, :4].any() and not digits.train_images[:, :, -4:].any()  # the frame
    assert set(digits.train_labels) == set(digits.test_labels) == set(range(10))
    np.testing.assert_array_equal(digits.test_images, data.load(offline=True).test_images)
    # Images and labels still belong together: the nearest neighbour mostly has the right label.
    classifier = KNeighborsClassifier(1).fit(data.as_inputs(digits.train_images), digits.train_labels)
    assert classifier.score(data.as_inputs(digits.test_images), digits.test_labels) > 0.9


def test_without_pooch_only_the_cache_and_a_download_are_missing(tiny, assert_tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match="Without ED_DATA, data needs pooch: pip install pooch"):
        data.load("mnist")
    assert data.load("mnist", offline=True).source == "scikit-learn"
    write(tmp_path / "mnist", tiny)
    monkeypatch.setenv("ED_DATA", str(tmp_path))
    assert_tiny(data.load("mnist"), "ED_DATA")


# From a data set to a network's inputs ------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_inputs(arrays, dtype):
    images = arrays[0].astype(np.uint8)
    images[0, 0, :2] = 0, 255
    inputs = data.as_inputs(images, dtype)
    assert inputs.shape == (6, 784) and inputs.dtype == dtype
    assert inputs[0, 0] == 0 and inputs[0, 1] == 1 and inputs.min() >= 0 and inputs.max() <= 1
    assert inputs[2, 28 * 3 + 5] == images[2, 3, 5] / np.dtype(dtype).type(255)


@pytest.mark.parametrize(
    "images, error, message",
    [
        (np.zeros((2, 28, 28)), TypeError, "images is a ndarray of float64; wanted a NumPy array of uint8"),
        ([[[0]]], TypeError, "images is a list"),
        (np.zeros((2, 784), np.uint8), ValueError, r"images has the shape \(2, 784\); wanted \(N, 28, 28\)"),
        (np.zeros((0, 28, 28), np.uint8), ValueError, "images has the shape"),
    ],
)
def test_as_inputs_refuses(images, error, message):
    with pytest.raises(error, match=message):
        data.as_inputs(images)


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_classes", [4, 10])
def test_one_hot_is_torchs(n_classes, dtype):
    labels = np.array([3, 0, 0, 2, 1], np.uint8)
    rows = data.one_hot(labels, n_classes, dtype)
    assert rows.dtype == dtype
    wanted = torch.nn.functional.one_hot(torch.from_numpy(labels.astype(np.int64)), n_classes)
    np.testing.assert_array_equal(rows, wanted.numpy())


@pytest.mark.parametrize(
    "labels, n_classes, error, message",
    [
        ([0, 10], 10, ValueError, "labels runs from 0 to 10; wanted 0 to 9"),
        ([-1, 0], 10, ValueError, "labels runs from -1 to 0"),
        ([0.0, 1.0], 10, TypeError, "labels is an array of float64; wanted integers"),
        ([True, False], 10, TypeError, "labels is an array of bool"),
        ([[0, 1]], 10, ValueError, r"labels has the shape \(1, 2\); wanted \(N,\)"),
        (3, 10, ValueError, r"labels has the shape \(\)"),
        (np.array([], np.uint8), 10, ValueError, r"labels has the shape \(0,\)"),
        ([0], 0, ValueError, "n_classes is 0; wanted at least 1"),
        ([0], 2.0, TypeError, "n_classes is 2.0"),
    ],
)
def test_one_hot_refuses(labels, n_classes, error, message):
    with pytest.raises(error, match=message):
        data.one_hot(labels, n_classes)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "nonsense", None, np.float32])
def test_dtypes_are_named_and_floating(dtype):
    with pytest.raises(ValueError, match="dtype is .*; wanted one of 'float32', 'float64'"):
        data.as_inputs(np.zeros((1, 28, 28), np.uint8), dtype)
    with pytest.raises(ValueError, match="dtype is .*; wanted one of 'float32', 'float64'"):
        data.one_hot([0], 10, dtype)


def test_pick_numbers_the_classes_in_the_order_given():
    labels = np.array([3, 7, 1, 7, 3, 0], np.uint8)
    images = np.arange(6 * 28 * 28).reshape(6, 28, 28)
    kept, numbered = data.pick(images, labels, [7, 3])
    np.testing.assert_array_equal(kept, images[[0, 1, 3, 4]])
    assert numbered.tolist() == [1, 0, 0, 1] and numbered.dtype == np.uint8
    inputs, zeros = data.pick(images.reshape(6, 784), labels, (1,))
    assert inputs.shape == (1, 784) and zeros.tolist() == [0]


@pytest.mark.parametrize(
    "n_images, labels, classes, error, message",
    [
        (3, [0, 1, 2], [], ValueError, r"classes is \[\]; wanted different ones among \[0, 1, 2\]"),
        (3, [0, 1, 2], [0, 0], ValueError, r"classes is \[0, 0\]"),
        (3, [0, 1, 2], [0, 5], ValueError, r"classes is \[0, 5\]"),
        (3, [0, 1, 2], [-1], ValueError, "classes is -1"),
        (3, [0, 1, 2], ["0"], TypeError, "classes is '0'"),
        (2, [0, 1, 2], [0], ValueError, r"images has the shape \(2, 28, 28\); wanted one per label, 3"),
        (3, [0.0, 1.0, 2.0], [0], TypeError, "labels is an array of float64"),
    ],
)
def test_pick_refuses(n_images, labels, classes, error, message):
    with pytest.raises(error, match=message):
        data.pick(np.zeros((n_images, 28, 28), np.uint8), labels, classes)


@pytest.mark.parametrize("n, size, sizes", [(10, 3, [3, 3, 3, 1]), (6, 3, [3, 3]), (2, 5, [2]), (1, 1, [1])])
def test_batches_cover_everything_once(n, size, sizes):
    parts = list(data.batches(n, size, seed=0))
    assert [len(part) for part in parts] == sizes
    assert sorted(np.concatenate(parts)) == list(range(n))
    assert all(part.dtype == np.int64 for part in parts)


def test_batches_depend_on_the_seed_alone():
    first, again, other = (np.concatenate(list(data.batches(100, 7, seed=seed))) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()
    assert first.tolist() != list(range(100))


def test_importing_it_imports_nothing_heavy():
    program = "import sys, ed_lib.data; print({'torch', 'torchvision', 'sklearn'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
