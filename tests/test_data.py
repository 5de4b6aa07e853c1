"""ed_lib.data: on a tiny data set and a loopback server; on the published files where ED_DATA names
them.
"""

import gzip
import hashlib
import os
import threading
import tracemalloc
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from ed_lib import data

pytest.importorskip("pooch")
REAL = os.environ.get("ED_DATA")  # read before the fixture below hides it
SAYS = "to be, or not to be"
ROWS = [
    ("1", "a dog", "a cat", "3.0", "NEUTRAL"),
    ("4", "it rains", "it pours", "4.5", "ENTAILMENT"),
    ("9", "up", "down", "2.0", "CONTRADICTION"),
    ("8", "down", "up", "2.5", "NEUTRAL"),
]


def idx(array):
    """An array as the bytes of an IDX file."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Away from the user's cache, proxies and the network. Returns the cache."""
    monkeypatch.delenv("ED_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "cache" / project)
    return tmp_path / "cache" / "ed_lib"


@pytest.fixture
def arrays():
    draw = np.random.default_rng(0).integers
    return [
        draw(0, top, shape, np.uint8)
        for n in (6, 3)
        for top, shape in ((256, (n, 28, 28)), (10, n))
    ]


@pytest.fixture
def tiny(arrays, monkeypatch):
    """Files published as "mnist", "tinyshakespeare" and "sick", at addresses where nobody
    answers.
    """
    mnist = {file: idx(each) for file, each in zip(data.SETS["mnist"][1], arrays, strict=True)}
    text = {"input.txt": SAYS.encode()}
    pairs = {"SICK.txt": "\n".join(map("\t".join, [("pair_ID", "", "", "", ""), *ROWS])).encode()}
    for name, contents in {"mnist": mnist, "tinyshakespeare": text, "sick": pairs}.items():
        files = {
            file: (len(raw), hashlib.sha256(raw).hexdigest()) for file, raw in contents.items()
        }
        address = "http://127.0.0.1:9/{}.gz" if name == "mnist" else "http://127.0.0.1:9/{}"
        monkeypatch.setitem(data.SETS, name, (address, files))
    return mnist | text | pairs


def write(root, tiny, name="mnist", ending=".gz"):
    (root / name).mkdir(parents=True, exist_ok=True)
    for file in data.SETS[name][1]:
        content = gzip.compress(tiny[file]) if ending else tiny[file]
        (root / name / (file + ending)).write_bytes(content)


@pytest.fixture
def server(tiny, tmp_path, monkeypatch):
    """Serves the tiny mnist → (the folder it serves, the paths that it was asked for)."""
    write(tmp_path / "served", tiny)
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *_):
            asked.append(self.path)

        def log_error(self, *_):
            pass

    handler = partial(Handler, directory=tmp_path / "served" / "mnist")
    serving = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=serving.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{serving.server_port}/{{}}.gz"
    monkeypatch.setitem(data.SETS, "mnist", (url, data.SETS["mnist"][1]))
    yield tmp_path / "served" / "mnist", asked
    serving.shutdown()
    serving.server_close()


def assert_tiny(found, arrays):
    for got, wanted in zip(found[:4], arrays, strict=True):
        assert (
            got.dtype == np.uint8 and got.flags.writeable
        )  # torch.from_numpy warns of read-only arrays
        np.testing.assert_array_equal(got, wanted)


@pytest.fixture
def real(monkeypatch):
    if not REAL:
        pytest.skip("no data")
    monkeypatch.setenv("ED_DATA", REAL)


@pytest.mark.oracle
def test_mnist_and_fashion_mnist_are_as_published(real):
    mnist, fashion = data.load("mnist"), data.load("fashion-mnist")
    for found, mean in ((mnist, 0.1307), (fashion, 0.2860)):  # by which everybody normalises them
        assert found.train_images.shape == (60000, 28, 28) and found.test_images.shape == (
            10000,
            28,
            28,
        )
        assert data.as_inputs(found.train_images, "float64").mean().round(4) == mean
    assert data.as_inputs(mnist.train_images, "float64").std().round(4) == 0.3081
    assert mnist.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # as commonly reported
    assert np.bincount(mnist.train_labels).tolist() == counts
    assert np.bincount(fashion.train_labels).tolist() == [6000] * 10
    assert np.bincount(fashion.test_labels).tolist() == [1000] * 10
    assert fashion.classes[fashion.train_labels[0]] == "Ankle boot" and len(fashion.classes) == 10


@pytest.mark.oracle
def test_tiny_shakespeare_and_sick_are_as_published(real):
    """Of SICK the counts of SemEval-2014's 9,927 pairs; no pair stands in both parts."""
    text = data.text()
    assert len(text.characters) == 65 and len(text.train) + len(text.held_out) == 1_115_394
    train, held_out = data.sick()
    pairs = [
        set(map(frozenset, zip(part.first, part.second, strict=True))) for part in (train, held_out)
    ]
    assert [(train.labels + held_out.labels).count(k) for k in range(3)] == [1459, 2857, 5611]
    assert not pairs[0] & pairs[1] and 0.18 < len(held_out.labels) / 9927 < 0.22
    assert data.minilm("tokenizer.json").is_file()


@pytest.mark.parametrize("ending", [".gz", ""])
def test_ed_data_comes_first_then_the_cache(tiny, arrays, cache, tmp_path, monkeypatch, ending):
    monkeypatch.setenv("ED_DATA", "")  # counts as not set
    write(cache, tiny, ending=ending)
    assert_tiny(data.load("mnist"), arrays)
    for spoilt in (cache / "mnist").iterdir():
        spoilt.write_bytes(b"spoilt")
    write(tmp_path, tiny, ending=ending)
    monkeypatch.setenv("ED_DATA", str(tmp_path))
    assert_tiny(data.load("mnist"), arrays)
    monkeypatch.setenv("ED_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(
        FileNotFoundError, match="ED_DATA is .*nowhere.*; wanted a folder that holds mnist/"
    ):
        data.load("mnist")


def test_what_the_cache_lacks_is_downloaded_once_and_what_is_wrong_leaves_no_file(
    server, arrays, cache
):
    folder, asked = server
    file = folder / "train-labels-idx1-ubyte.gz"
    sound = file.read_bytes()
    file.write_bytes(b"<html>")
    with pytest.raises(
        data.DataError, match="http://127.0.0.1.*train-labels.*gz is not the published file"
    ):
        data.load("mnist")
    file.unlink()
    with pytest.raises(
        ConnectionError, match=r"No download of mnist/train-labels.* \(HTTPError\), and no"
    ):
        data.load("mnist")
    assert [path.name for path in cache.rglob("*") if path.is_file()] == [
        "train-images-idx3-ubyte.gz"
    ]
    file.write_bytes(sound)
    asked.clear()
    for _ in range(2):
        assert_tiny(data.load("mnist"), arrays)
    assert asked == [f"/{file}.gz" for file in list(data.SETS["mnist"][1])[1:]]


def test_no_network_and_no_copy_is_an_error_that_says_what_to_do(tiny, cache):
    for call, name in ((data.load, "mnist"), (data.text, "tinyshakespeare"), (data.sick, "sick")):
        words = rf"No download of {name}/.*: let ED_DATA .* {name}/, or connect"
        with pytest.raises(ConnectionError, match=words):
            call()


def test_no_cache_that_can_be_written_is_one_line_that_says_what_to_do(tiny, cache):
    cache.parent.mkdir()
    cache.write_text("a file where a folder should be")
    for call, name in ((data.load, "mnist"), (data.text, "tinyshakespeare"), (data.sick, "sick")):
        with pytest.raises(ConnectionError) as raised:
            call()
        message = str(raised.value)
        assert message.startswith(f"No copy of {name}/") and "\n" not in message, message
        assert f"none can be kept in {cache / name} (" in message
        assert message.endswith(f"let ED_DATA name a folder with {name}/")


@pytest.mark.skipif(os.geteuid() == 0, reason="to root no folder is closed")
def test_a_cache_that_one_may_not_look_into_is_such_a_line_too(tiny, cache):
    cache.mkdir(parents=True)
    cache.chmod(0)
    try:
        with pytest.raises(ConnectionError, match="No copy of mnist/.* can be kept in "):
            data.load()
    finally:
        cache.chmod(0o700)


SPOILT = {  # what becomes of a file's bytes, and what is said of it
    "altered": (
        lambda raw: gzip.compress(raw[:-1] + bytes([raw[-1] ^ 1])),
        "is not the published file",
    ),
    "truncated": (lambda raw: gzip.compress(raw)[:-20], "cannot be decompressed"),
    "overwritten": (
        lambda raw: gzip.compress(raw)[:12] + b"????" + gzip.compress(raw)[16:],
        "cannot be",
    ),
    "empty": (lambda raw: b"", "is not the published file"),
    "one byte more": (lambda raw: raw + b"\0", "is longer than the published file"),
    "one byte less": (lambda raw: raw[:-1], "is not the published file"),
    "a bomb": (lambda raw: gzip.compress(bytes(2**26)), "is longer than the published file"),
}


@pytest.mark.parametrize("damage", SPOILT)
def test_a_spoilt_file_is_an_error_and_stays_and_costs_nothing(
    tiny, server, tmp_path, monkeypatch, damage
):
    spoil, said = SPOILT[damage]
    write(tmp_path, tiny)
    file, raw = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz", tiny["t10k-labels-idx1-ubyte"]
    file.write_bytes(spoilt := spoil(raw))
    monkeypatch.setenv("ED_DATA", str(tmp_path))
    tracemalloc.start()
    with pytest.raises(data.DataError, match=said) as caught:
        data.load("mnist")
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()
    read = gzip.decompress(spoilt)[: len(raw) + 1] if damage in ("altered", "a bomb") else spoilt
    message = str(caught.value)
    assert str(file) in message and hashlib.sha256(raw).hexdigest() in message
    assert hashlib.sha256(read).hexdigest() in message
    assert file.read_bytes() == spoilt and server[1] == []  # no silent download in its place


def test_a_text_is_the_numbers_of_its_characters(tiny, cache):
    write(cache, tiny, "tinyshakespeare", "")
    text = data.text()
    assert text.characters == " ,benort" and (len(text.train), len(text.held_out)) == (17, 2)
    assert "".join(text.characters[n] for n in torch.cat([text.train, text.held_out])) == SAYS


def test_stretches_are_the_text_and_what_follows():
    numbers = torch.arange(20)
    for x, wanted in (next(data.stretches(numbers, 50, 19, seed=seed)) for seed in range(3)):
        assert (
            x.shape == (19, 50) and torch.equal(wanted, x + 1) and torch.equal(x[1:], wanted[:-1])
        )
    first, again = (next(data.stretches(numbers, 3, 5, seed=1))[0] for _ in range(2))
    assert torch.equal(first, again)
    starts = next(data.stretches(numbers, 500, 18, seed=0))[0][0]
    assert set(starts.tolist()) == {0, 1}, "every place that leaves room, and no other"


def test_pairs_are_the_files_and_a_pair_that_stands_turned_stays_in_one_part(tiny, cache):
    write(cache, tiny, "sick", "")
    parts = data.sick()
    found = [row for part in parts for row in zip(part.first, part.second, *part[2:], strict=True)]
    assert sorted(found) == sorted(
        (a, b, data.SICK_LABELS.index(k), float(r)) for _, a, b, r, k in ROWS
    )
    assert any({"up", "down"} <= set(part.first) for part in parts)


@pytest.mark.oracle
def test_digits_look_like_mnist(capsys):
    digits, again = data.load(offline=True), data.load("fashion-mnist", offline=True)
    said = "Offline: scikit-learn's 8×8 digits, resized to 28×28, instead of {}.\n"
    assert capsys.readouterr().out == said.format("MNIST") + said.format("Fashion-MNIST")
    for images, labels, n in ((*digits[:2], 1437), (*digits[2:4], 360)):
        assert images.shape == (n, 28, 28) and images.dtype == labels.dtype == np.uint8
        assert images.min() == 0 and images.max() == 255 and set(labels) == set(range(10))
        assert not images[:, :4].any() and not images[:, :, -4:].any()  # the frame
    np.testing.assert_array_equal(digits.test_images, again.test_images)
    # Images and labels still belong together: the nearest neighbour mostly has the right label.
    classifier = KNeighborsClassifier(1).fit(
        data.as_inputs(digits.train_images), digits.train_labels
    )
    assert classifier.score(data.as_inputs(digits.test_images), digits.test_labels) > 0.9


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_inputs_are_the_pixels_over_255(arrays, dtype):
    inputs = data.as_inputs(arrays[0], dtype)
    assert inputs.dtype == dtype and inputs[2, 28 * 3 + 5] == arrays[0][2, 3, 5] / np.dtype(
        dtype
    ).type(255)
    np.testing.assert_array_equal(inputs, arrays[0].reshape(6, 784) / np.dtype(dtype).type(255))
    x, y = data.tensors(*arrays[:2], dtype)
    assert x.shape == (6, 1, 28, 28) and y.dtype == torch.int64 and y.tolist() == arrays[1].tolist()
    np.testing.assert_array_equal(x.view(6, 784).numpy(), inputs)


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_classes", [4, 10])
def test_one_hot_is_torchs(n_classes, dtype):
    labels = np.array([3, 0, 0, 2, 1], np.uint8)
    rows = data.one_hot(labels, n_classes, dtype)
    wanted = torch.nn.functional.one_hot(torch.from_numpy(labels.astype(np.int64)), n_classes)
    assert rows.dtype == dtype
    np.testing.assert_array_equal(rows, wanted.numpy())


def test_no_labels_have_no_rows():
    assert data.one_hot(np.zeros(0, np.uint8), 4).shape == (0, 4)


def test_pick_numbers_the_classes_in_the_order_given():
    labels = np.array([3, 7, 1, 7, 3, 0], np.uint8)
    images = np.arange(6 * 28 * 28).reshape(6, 28, 28)
    kept, numbered = data.pick(images, labels, [7, 3])
    np.testing.assert_array_equal(kept, images[[0, 1, 3, 4]])
    assert numbered.tolist() == [1, 0, 0, 1] and numbered.dtype == np.uint8


@pytest.mark.parametrize(
    "n, size, sizes", [(10, 3, [3, 3, 3, 1]), (6, 3, [3, 3]), (2, 5, [2]), (1, 1, [1])]
)
def test_batches_cover_everything_once_in_an_order_by_the_seed(n, size, sizes):
    parts = list(data.batches(n, size, seed=0))
    assert [len(part) for part in parts] == sizes and all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(n))
    first, again, other = (
        np.concatenate([*data.batches(100, 7, seed=seed)]).tolist() for seed in (1, 1, 2)
    )
    assert first == again != other and first != list(range(100))
