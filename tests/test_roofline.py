"""Ceilings and floor: what is counted, what is taken, what is put back. Never how fast a machine is."""

import numpy as np
import pytest
import torch

from ed_lib import machine, roofline

ROOF = roofline.Ceilings("a machine", "float32", bandwidth=1e9, rate=4e9)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "size, flops, seconds",
    [(2e9, 0, 2), (0, 2e9, 0.5), (1e9, 4e9, 1), (1e9, 8e9, 2), (3e9, 8e9, 3), (0, 0, 0), (10**12, 1, 1000)],
)
def test_the_floor_is_the_longer_of_moving_and_computing(size, flops, seconds):
    assert ROOF.floor(size, flops) == ROOF.floor(np.int64(size), flops) == seconds


@pytest.mark.parametrize("name", ["bytes", "flops"])
@pytest.mark.parametrize(
    "value, error", [(-1, ValueError), (float("nan"), ValueError), (float("inf"), ValueError),
                     ("1", TypeError), (None, TypeError), (False, TypeError)],
)  # fmt: skip
def test_a_bad_amount_is_named(name, value, error):
    with pytest.raises(error, match=f"{name} is {value!r}; wanted a"):
        ROOF.floor(**({"bytes": 0, "flops": 0} | {name: value}))


@pytest.mark.parametrize("name", ["bandwidth", "rate"])
def test_a_ceiling_is_above_0(name):
    with pytest.raises(ValueError, match=f"{name} is 0"):
        roofline.Ceilings(**({"device": "x", "dtype": "float32", "bandwidth": 1, "rate": 1} | {name: 0}))


def test_ceilings_are_measured_once_kept_and_only_ever_raised(monkeypatch, tmp_path):
    name, found = machine.name("cpu"), iter([(5, 50), (7, 40), (6, 60), (1, 1), (2, 2)])
    monkeypatch.setenv("ED_CEILINGS", str(tmp_path / "cache" / "ceilings.json"))
    monkeypatch.setattr(machine, "threads", lambda: 1 + torch.get_num_threads())  # so: as set, one, and all
    monkeypatch.setattr(
        roofline, "measure", lambda device, dtype, seconds: roofline.Ceilings(name, dtype, *next(found))
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first = roofline.ceilings()
        assert (first.bandwidth, first.rate) == (7, 50)  # the best of one thread and of all
        assert roofline.ceilings() == first  # from the file
        assert roofline.raised().rate == 60 and roofline.ceilings().bandwidth == 7
        (tmp_path / "cache" / "ceilings.json").write_text("{broken")
        with pytest.raises(StopIteration):  # as none are kept, it measures
            roofline.ceilings()
            roofline.ceilings("cpu", "float64")
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def small(monkeypatch):
    """Arrays and matrices that take no time."""
    monkeypatch.setattr(roofline, "_array_bytes", lambda device: 2**16)
    monkeypatch.setattr(roofline, "SIZES", {"cpu": (16, 32)})


@pytest.mark.parametrize("dtype", roofline.DTYPES)
def test_the_ceilings_name_what_they_were_measured_on(small, dtype):
    found = roofline.measure("cpu", dtype, seconds=0.01)
    assert (found.device, found.dtype) == (machine.name("cpu"), dtype)
    assert found.access in ("copy", "scale", "read") and found.bandwidth > 0 and found.rate > 0
    assert found.access in str(found) and "GB/s" in str(found) and dtype in str(found)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "seconds, moved, access",
    [([4, 8, 8], 2 * 2**16 / 4, "copy"), ([8, 4, 8], 2 * 2**16 / 4, "scale"), ([8, 8, 2], 2**16 / 2, "read")],
)
def test_a_byte_that_is_read_and_written_counts_twice_and_the_best_access_is_taken(
    small, monkeypatch, seconds, moved, access
):
    runs = iter(seconds)
    monkeypatch.setattr(roofline, "_best", lambda function, limit, device: next(runs))
    assert roofline._bandwidth("cpu", 1.0) == (moved, access)


@pytest.mark.oracle
def test_a_square_product_counts_2n3_and_the_best_size_is_taken(monkeypatch):
    monkeypatch.setattr(roofline, "SIZES", {"cpu": (10, 20, 40)})
    monkeypatch.setattr(roofline, "_product", lambda n, device, dtype: n)
    seconds = {10: 2.0, 20: 4.0, 40: 64.0}
    monkeypatch.setattr(roofline, "_best", lambda n, limit, device: seconds[n])
    assert roofline._rate("cpu", "float32", 1000) == 2 * 20**3 / 4


def test_a_size_that_would_take_too_long_is_not_begun(monkeypatch):
    began = []
    monkeypatch.setattr(roofline, "SIZES", {"cpu": (10, 20, 40)})
    monkeypatch.setattr(roofline, "_product", lambda n, device, dtype: n)
    monkeypatch.setattr(
        roofline, "_best", lambda n, limit, device: began.append(n) or 2 * n**3 / 1000
    )  # 1000 FLOP/s
    assert roofline._rate("cpu", "float32", 3 * 16) == 1000 and began == [10, 20]  # 40 would take 128 s


@pytest.mark.oracle
def test_the_product_is_right():
    a, b = torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(roofline._product(8, "cpu", "float32")(), a @ b)


def test_the_fastest_run_is_taken_after_waiting_for_the_device(monkeypatch):
    now, events, lengths = [0.0], [], iter([5, 2, 3, 4])

    def function():
        events.append("run")
        now[0] += next(lengths)

    monkeypatch.setattr(roofline, "perf_counter", lambda: now[0])
    monkeypatch.setattr(roofline.timing, "synchronize", lambda: events.append("wait"))
    assert roofline._best(function, 12, "cpu") == 2
    assert events == ["wait", "run", "wait"] * 4


def settings():
    return torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()


@pytest.fixture
def precision():
    """Puts PyTorch's precision of float32 products back, whatever a test does to it."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
def test_tf32_is_off_while_measuring_and_afterwards_as_before(small, precision, monkeypatch, before):
    torch.set_float32_matmul_precision(before)
    was, during = settings(), []
    monkeypatch.setattr(roofline, "_best", lambda function, limit, device: during.append(settings()) or 1.0)
    roofline.measure(seconds=1000)
    assert settings() == was and during[-1] == (False, "highest")


def test_tf32_is_as_before_after_a_fault_too(small, precision, monkeypatch):
    torch.backends.cuda.matmul.allow_tf32 = True
    monkeypatch.setattr(roofline, "_rate", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        roofline.measure(seconds=0.01)
    assert torch.backends.cuda.matmul.allow_tf32


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="needs PyTorch 2.9")
def test_the_newer_setting_by_library_is_put_back_too(precision):
    matmul = torch.backends.cuda.matmul
    matmul.fp32_precision = "tf32"  # from now on PyTorch refuses to tell allow_tf32
    with roofline.true_float32():
        assert matmul.fp32_precision == "ieee" and not matmul.allow_tf32
    assert matmul.fp32_precision == "tf32"


@pytest.mark.parametrize(
    "device, cache, memory, wanted",
    [("cpu", 36608, 2**34, 2**28), ("cpu", 2**19, 2**40, 2**31), ("cpu", 36608, 2**30, 2**27),
     ("cpu", None, float("inf"), 2**28), ("cuda", 36608, 2**37, 2**30), ("cuda:1", 36608, 2**32, 2**29)],
)  # fmt: skip
def test_arrays_are_larger_than_the_caches_and_leave_room(
    monkeypatch, tmp_path, device, cache, memory, wanted
):
    for index, size in enumerate(["32K", f"{cache}K"] if cache else []):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    monkeypatch.setattr(roofline, "CACHES", tmp_path)
    monkeypatch.setattr(machine, "memory", lambda name: memory)
    assert roofline._array_bytes(device) == wanted


@pytest.mark.parametrize(
    "given, wanted",
    [({"device": "tpu"}, "device is 'tpu'"), ({"device": "cuda:99"}, "device is 'cuda:99'"),
     ({"dtype": "int8"}, "dtype is 'int8'"), ({"seconds": 0}, "seconds is 0")],
)  # fmt: skip
def test_a_bad_argument_is_named(given, wanted):
    with pytest.raises(ValueError, match=f"{wanted}; wanted"):
        roofline.measure(**given)
