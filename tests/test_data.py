"""ed_lib.data: the samples that are part of the package, and what is made of images, texts, labels."""

import lzma
import os

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from ed_lib import data, published
from tools import samples


@pytest.fixture
def arrays():
    draw = np.random.default_rng(0).integers
    return [draw(0, 256, (6, 28, 28), np.uint8), draw(0, 10, 6, np.uint8)]


@pytest.mark.oracle
@pytest.mark.parametrize("name", data.TITLES)
def test_a_sample_is_the_first_images_of_the_published_set(name):
    """Byte for byte, where the set is at hand; and the nearest neighbour mostly has the right
    label.
    """
    found = data.load(name)
    assert found.name == data.TITLES[name] and len(found.classes) == 10
    for images, labels, n in ((*found[:2], 12_800), (*found[2:4], 2_000)):
        assert images.shape == (n, 28, 28) and labels.shape == (n,)
        assert images.dtype == labels.dtype == np.uint8 and images.flags.writeable
        assert images.min() == 0 and images.max() == 255 and set(labels) == set(range(10))
    classifier = KNeighborsClassifier(1).fit(data.as_inputs(found[0][:2000]), found[1][:2000])
    assert classifier.score(data.as_inputs(found[2][:200]), found[3][:200]) > 0.7
    if not os.environ.get("ED_DATA"):
        pytest.skip("no published set here")
    whole = data.load(name, whole=True)
    for few, every in zip(found[:4], whole[:4], strict=True):
        np.testing.assert_array_equal(few, every[: len(few)])
    assert samples.sample(name) == data._sample(name)


@pytest.mark.oracle
def test_tiny_shakespeare_is_whole():
    text = data.text()
    assert len(text.characters) == 65 and len(text.train) + len(text.held_out) == 1_115_394
    assert len(text.train) == 1_115_394 * 9 // 10
    begins = "".join(text.characters[n] for n in text.train[:52])
    assert begins == "First Citizen:\nBefore we proceed any further, hear me"[:52]


def test_the_samples_need_neither_ed_data_nor_a_cache_nor_a_network(monkeypatch):
    monkeypatch.setenv("ED_DATA", "nowhere")
    monkeypatch.setattr(published, "find", lambda *_: pytest.fail("a published set"))
    assert len(data.load("mnist").train_labels) == 12_800 and len(data.text().characters) == 65


DAMAGED = {
    "cut off": (lambda raw: raw[:-100], "is not the published file: SHA-256 .*; wanted "),
    "altered": (lambda raw: raw[:1000] + b"????" + raw[1004:], "mnist.xz "),
    "empty": (lambda raw: b"", "mnist.xz is not the published file"),
    "no archive": (lambda raw: b"<html>" + raw, "mnist.xz cannot be decompressed: "),
    "a bomb": (lambda raw: lzma.compress(bytes(2**26)), "mnist.xz is longer than the published"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_sample_is_an_error_that_names_the_file(damage, tmp_path, monkeypatch):
    spoil, said = DAMAGED[damage]
    (tmp_path / "mnist.xz").write_bytes(spoil((data.SAMPLES / "mnist.xz").read_bytes()))
    monkeypatch.setattr(data, "SAMPLES", tmp_path)
    with pytest.raises(published.DataError, match=said) as raised:
        data.load("mnist")
    assert "\n" not in str(raised.value) and len(os.listdir(tmp_path)) == 1


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
