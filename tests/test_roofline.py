"""Ceilings and floor: what is counted, what is taken, what is put back. Never how fast a machine
is.
"""

import json

import numpy as np
import pytest
import torch

from ed_lib import machine, roofline

ROOF = roofline.Ceilings("a machine", "float32", bandwidth=1e9, rate=4e9)


@pytest.mark.oracle
@pytest.mark.parametrize("size, flops, seconds", [
    (2e9, 0, 2), (0, 2e9, 0.5), (1e9, 4e9, 1), (1e9, 8e9, 2), (3e9, 8e9, 3), (0, 0, 0), (10**12, 1, 1000),
])  # fmt: skip
def test_the_floor_is_the_longer_of_moving_and_computing(size, flops, seconds):
    assert ROOF.floor(size, flops) == ROOF.floor(np.int64(size), flops) == seconds


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """The file of the ceilings, on a machine where ``probe`` finds what is given."""
    file, found = tmp_path / "cache" / "ceilings.json", []
    monkeypatch.setenv("ED_CEILINGS", str(file))

    def made(device, dtype, seconds, threads):
        return roofline.Ceilings("a machine", dtype, *found.pop(0))

    monkeypatch.setattr(roofline, "probe", made)
    return file, found


def test_ceilings_are_measured_once_kept_and_only_ever_raised(kept):
    file, found = kept
    found += [(5, 50, 3, "MKL"), (7, 40, 2, "oneDNN"), (6, 60, 1, "NumPy"), (1, 1)]
    first = roofline.ceilings()
    assert (
        first == roofline.ceilings() == roofline.Ceilings("a machine", "float32", 5, 50, 3, "MKL")
    )
    assert roofline.raised() == roofline.Ceilings("a machine", "float32", 7, 50, 3, "MKL")
    assert roofline.raised().library == "NumPy" and roofline.ceilings().rate == 60
    assert roofline.ceilings("cpu", "float64").rate == 1 and not found
    assert [file.name for file in file.parent.iterdir()] == ["ceilings.json"]


MALFORMED = [
    "{broken",
    "[]",
    '{"KEY": 7}',
    '{"KEY": {"device": "x", "rate": 1}}',
    "\udcff",
    '{"KEY": {"device": "x", "dtype": "float32", "bandwidth": "1", "rate": 1}}',
    '{"KEY": {"device": "x", "dtype": "float32", "bandwidth": 1, "rate": 1, "reading": "x"}}',
    '{"KEY": {"device": "x", "dtype": "float32", "bandwidth": 1, "rate": 1, "reading": NaN}}',
    '{"KEY": {"device": "x", "dtype": "float32", "bandwidth": 1, "rate": 1, "library": 5}}',
    '{"KEY": {"device": null, "dtype": "float32", "bandwidth": 1, "rate": 1}}',
]


def test_ceilings_are_told_without_exponents():
    fast = roofline.Ceilings("a GPU", "float16", 4.8e12, 7.9e14, 4.1e12, "PyTorch")
    wanted = "4,800 GB/s (4,100 reading), 790,000 GFLOP/s in float16 by PyTorch: a GPU"
    assert str(fast) == wanted


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_file_is_measured_anew(kept, text):
    (file, found), key = kept, f"{machine.slug()}, float32"
    file.parent.mkdir()
    file.write_text(text.replace("KEY", key), errors="surrogateescape")
    found.append((5, 50))
    assert roofline.ceilings().rate == 50 == roofline.ceilings().rate
    assert [*json.loads(file.read_text())] == [key]


@pytest.fixture
def small(monkeypatch):
    """Arrays and matrices that take no time."""
    monkeypatch.setattr(machine, "memory", lambda device: 8 * 2**16)
    monkeypatch.setattr(roofline, "MATRIX_SIZES", {"cpu": (16, 32)})


@pytest.mark.parametrize("dtype", roofline.DTYPES)
def test_the_ceilings_name_what_they_were_measured_on(small, dtype):
    threads = torch.get_num_threads()
    found = roofline.probe("cpu", dtype, seconds=0.01)
    assert (found.device, found.dtype) == (machine.name("cpu"), dtype)
    assert (
        found.bandwidth >= found.reading > 0
        and found.rate > 0
        and torch.get_num_threads() == threads
    )
    assert found.library in ("PyTorch", "NumPy", "oneDNN") and found.library in str(found)
    assert "GB/s" in str(found) and dtype in str(found)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "copy, scale, read, moved", [(4, 8, 8, 2 / 4), (8, 4, 8, 2 / 4), (8, 8, 2, 1 / 2)]
)
def test_a_byte_that_is_read_and_written_counts_twice_and_the_best_access_is_taken(
    small, monkeypatch, copy, scale, read, moved
):
    runs = iter([copy, scale, read])
    monkeypatch.setattr(roofline, "fastest", lambda function, limit, device: next(runs))
    monkeypatch.setattr(roofline, "_rate", lambda *arguments: (1.0, "any"))
    found = roofline.probe(seconds=1.0)
    assert found.bandwidth == moved * 2**16 and found.reading == 2**16 / read


@pytest.mark.oracle
def test_a_square_product_counts_2n3_and_the_best_size_and_library_are_taken(monkeypatch):
    """Those of 40 would take too long, and are not begun."""
    seconds, begun = {10: 2.0, 20: 4.0, 40: 640.0}, []
    monkeypatch.setattr(roofline, "MATRIX_SIZES", {"cpu": (*seconds,)})
    monkeypatch.setattr(roofline, "_products", lambda n, device, dtype: {"a": (n, 1), "b": (n, 2)})
    best = lambda of, limit, device: begun.append(of[0]) or seconds[of[0]] / of[1]  # noqa: E731
    monkeypatch.setattr(roofline, "fastest", best)
    assert roofline._rate("cpu", "float32", 60) == (2 * 20**3 / 2, "b") and begun == [
        10,
        10,
        20,
        20,
    ]


@pytest.mark.oracle
@pytest.mark.parametrize("dtype, at_least", [("float32", 2), ("float64", 2), ("bfloat16", 1)])
def test_the_products_of_all_libraries_are_right(dtype, at_least):
    a, b = torch.rand(
        2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=getattr(torch, dtype)
    )
    products = roofline._products(8, "cpu", dtype)
    assert len(products) >= at_least
    for product in products.values():
        torch.testing.assert_close(torch.as_tensor(product()), a @ b)


def test_the_fastest_run_is_taken(monkeypatch):
    now, lengths = [0.0], iter([5, 2, 3, 4])
    monkeypatch.setattr(roofline, "perf_counter", lambda: now[0])
    assert roofline.fastest(lambda: now.__setitem__(0, now[0] + next(lengths)), 12, "cpu") == 2
    assert next(lengths, None) is None


def settings():
    return [
        backend.matmul.fp32_precision for backend in (torch.backends.cuda, torch.backends.mkldnn)
    ]


@pytest.fixture(params=["highest", "high", "medium", "tf32, by library"])
def precision(request):
    """PyTorch's precision of float32 products, set anew; put back, whatever a test does to it."""
    before, matmul = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul
    if request.param in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(request.param)
    else:
        matmul.fp32_precision = "tf32"  # from now on PyTorch refuses to tell allow_tf32
    yield settings()
    torch.set_float32_matmul_precision(before)


def test_tf32_is_off_while_measuring_and_afterwards_as_before(small, precision, monkeypatch):
    during = []
    monkeypatch.setattr(
        roofline, "fastest", lambda function, limit, device: during.append(settings()) or 1.0
    )
    roofline.probe(seconds=1000)
    assert settings() == precision and not {"tf32", "bf16"} & set(during[-1])
    monkeypatch.setattr(roofline, "_rate", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        roofline.probe(seconds=0.01)
    assert settings() == precision, "after a fault too"
