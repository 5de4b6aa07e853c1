"""What each cure may gain, beside a sum made by hand, on measurements that are made up."""

from collections import Counter

import pytest

from ed_lib import machine
from ed_lib.diagnose import cures, repetition, verdict
from ed_lib.diagnose.profiled import Profiled
from ed_lib.diagnose.verdict import Held
from ed_lib.diagnose.watching import Touch
from tests.diagnose.made_up import BANDWIDTH, CACHED, COSTS, RATES, call, measured

MS = 1e-3
MILLION = 1_000_000


def bounds(found):
    return {cure.name: cure.bound for cure in cures.cures(found)}


def bound(seconds, saved):
    """Amdahl's law."""
    return pytest.approx(seconds / (seconds - saved))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(machine, "threads", lambda: 1)


def kernel(name="mul", **change):
    """A millisecond of traffic at its floor."""
    return call(name, **{"bytes": MILLION, "seconds": MS} | change)


def test_nothing_to_gain_is_nothing_promised():
    """One product at its floor, in a format that nothing is faster than."""
    product = call("mm", flops=4 * MILLION, seconds=MS, dtype="bfloat16")
    assert bounds(measured(MS, [product])) == {}


def test_no_cure_promises_more_than_its_part():
    """Nor more than a hundredfold, however much is saved."""
    found = measured(3 * MS, [kernel()], waited=2 * MS)
    assert bounds(found)["loader workers and pinned memory"] == bound(3 * MS, 2 * MS)
    found = measured(2 * MS, [], waited=2 * MS)
    assert bounds(found)["loader workers and pinned memory"] == bound(1, 0.99)


def test_the_largest_bound_comes_first():
    found = cures.cures(measured(10 * MS, [kernel("neg", outside=3 * MS)] * 2, waited=1 * MS))
    assert len(found) > 2
    assert [cure.bound for cure in found] == sorted((c.bound for c in found), reverse=True)
    assert all(cure.bound >= cures.LEAST and cure.why for cure in found)


def test_no_synchronisation():
    profile = Profiled(span=4 * MS, after_waits=1 * MS)
    calls = [kernel(), kernel("copy_", bytes=0, moves_between=True)]
    found = measured(8 * MS, calls, profile=profile, device="cuda:0")
    # A quarter of the step is idle after waits, and the copy takes a millisecond.
    assert bounds(found)["no synchronisation"] == bound(8, 2 + 1)


def test_less_work_outside_pytorch():
    found = measured(5 * MS, [kernel("neg", outside=3 * MS)])
    assert bounds(found)["less work outside PyTorch"] == bound(5, 3)


def test_a_larger_batch():
    """It spares a share of the calls, of the optimizer, and of products that wait for weights; not
    of products that wait for arithmetic, nor of traffic.
    """
    waiting = call("mm", bytes=MILLION, flops=10, seconds=MS)
    computing = call("addmm", bytes=10, flops=MILLION, seconds=MS)
    optimizing = kernel("add_", phase="optimizer")
    calls = [waiting, computing, kernel(), optimizing]
    found = measured(5 * MS, calls, optimizing=1 * MS)
    host = 1 * MS  # what is left of the step: calls, or not explained
    # Four times the examples need it once and not four times: three quarters are spared.
    assert bounds(found)["a larger batch"] == bound(5 * MS, 0.75 * (host + 1 * MS + 1 * MS))


def test_the_layouts_of_a_convolutions_weights_do_not_grow_with_the_batch():
    """Weights of 100,000 bytes, copied there and back."""
    images, weights = (8, 5, 10, 10), (500, 5, 10)
    convolution = call(
        "convolution", flops=MILLION, seconds=2 * MS, shapes=(images, weights, (500,))
    )
    found = measured(2 * MS, [convolution])
    assert bounds(found)["a larger batch"] == bound(2, 0.75 * 0.2)
    gradients = call(
        "convolution_backward",
        flops=MILLION,
        seconds=2 * MS,
        shapes=(images, images, weights),
        phase="backward",
    )
    assert bounds(measured(2 * MS, [gradients]))["a larger batch"] == bound(2, 0.75 * 0.4)


def test_sums_of_gradients_do_not_grow_with_the_batch():
    weight, activation = ((4, 4), (4, 4)), ((64, 4), (64, 4))
    optimizing = kernel("add_", phase="optimizer", shapes=weight)
    calls = [kernel("add", phase="backward", shapes=shapes) for shapes in (weight, activation)]
    found = measured(3 * MS, [*calls, optimizing])
    assert bounds(found)["a larger batch"] == bound(3, 0.75 * (1 + 1))


def test_compiling_leaves_one_pass_between_two_products():
    product = call("mm", flops=MILLION, seconds=MS)
    calls = [kernel(), kernel(), product, kernel(), kernel("neg", bytes=MILLION // 2)]
    found = measured(5 * MS, calls)
    once = MS + MS  # a pass before the product, and one after it: of the larger operator
    assert bounds(found)["torch.compile"] == bound(5 * MS, 4 * MS - once)
    assert "torch.compile" not in bounds(measured(5 * MS, calls, profile=Profiled(compiled=MS)))


def test_compiling_leaves_a_pass_forward_and_a_pass_backward():
    calls = [kernel(), kernel(), kernel(phase="backward"), kernel(phase="backward")]
    assert bounds(measured(4 * MS, calls))["torch.compile"] == bound(4, 1 + 1)


def test_compiling_leaves_what_a_function_computes():
    """The exponential takes 3 ms, of which one is the system's for a thousand pages."""
    calls = [kernel(), kernel("exp", seconds=3 * MS, pages=1000), kernel("neg")]
    assert bounds(measured(5 * MS, calls))["torch.compile"] == bound(5, 5 - 2)


def test_workers_compute_beside_the_step(monkeypatch):
    """A loader that computes for 4 ms needs a processor for them, one that sleeps does not."""
    monkeypatch.setattr(machine, "threads", lambda: 2)
    name = "loader workers and pinned memory"
    sleeps = measured(5 * MS, [kernel()], waited=4 * MS, processing=1 * MS)
    assert bounds(sleeps)[name] == bound(5, 4)
    computes = measured(5 * MS, [kernel()], waited=4 * MS, processing=5 * MS)
    assert bounds(computes)[name] == bound(5, 2.5)


def test_less_work_for_a_batch_is_named_by_its_line():
    """Where nobody saw the line, as of workers, there is no such cure."""
    found = measured(5 * MS, [kernel()], waited=4 * MS, waits=Counter({"a.py:1": 3, "a.py:2": 9}))
    cure = next(one for one in cures.cures(found) if one.name == "less work for a batch")
    assert cure.bound == bound(5, 4) and cure.why.endswith("a.py:2")
    assert "less work for a batch" not in bounds(measured(5 * MS, [kernel()], waited=4 * MS))


def test_flushing_spares_what_subnormal_numbers_take_above_the_floor():
    calls = [kernel("sqrt", seconds=3 * MS, subnormal=0.9), kernel(seconds=2 * MS)]
    found = measured(5 * MS, calls)
    assert bounds(found)["flush subnormal numbers"] == bound(5, 2)
    assert "90% of what sqrt reads" in str([cure.why for cure in cures.cures(found)])


def test_memory_that_is_kept_is_not_handed_out_anew():
    found = measured(3 * MS, [kernel(seconds=3 * MS, pages=1000)])
    assert bounds(found)["keep memory"] == bound(3, 1)
    on_gpu = measured(3 * MS, [kernel(seconds=3 * MS, pages=1000)], device="cuda:0")
    assert "keep memory" not in bounds(on_gpu)


def test_compiling_spares_calls_but_not_the_optimizers():
    calls = [kernel(), kernel("add_", phase="optimizer")]
    found = measured(5 * MS, calls, optimizing=2 * MS)
    host = 5 * MS - 2 * MS  # calls and what is not explained
    assert bounds(found)["torch.compile"] == bound(5 * MS, host - (2 * MS - 1 * MS))


def test_cuda_graphs_spare_the_host():
    found = measured(3 * MS, [kernel()], device="cuda:0")
    assert bounds(found)["CUDA graphs"] == bound(3, 2)
    assert "CUDA graphs" not in bounds(measured(3 * MS, [kernel()]))


def test_a_fused_optimizer_reads_everything_once():
    """Parameter, gradient and momentum of 1 MB each, in two operators that read them."""
    touches = [Touch(MILLION, None)] * 3
    calls = [
        call("mul_", phase="optimizer", reads=(3,), touches=touches[:1], seconds=2 * MS),
        call("add_", phase="optimizer", reads=(2, 3), touches=touches[:2], seconds=3 * MS),
        call("add_", phase="optimizer", reads=(1, 3), touches=touches[:2], seconds=3 * MS),
    ]
    found = measured(20 * MS, calls, optimizing=9 * MS, can_fuse=True)
    once = 3 * MILLION / BANDWIDTH
    assert bounds(found)["a fused optimizer"] == bound(20 * MS, 9 * MS - once)
    assert "a fused optimizer" not in bounds(measured(20 * MS, calls, optimizing=9 * MS))


def test_a_fused_optimizer_of_a_small_model_reads_from_its_cache():
    calls = [call("add_", phase="optimizer", reads=(1,), touches=[Touch(800, 10)], seconds=MS)]
    found = measured(10 * MS, calls, optimizing=2 * MS, can_fuse=True)
    assert bounds(found)["a fused optimizer"] == bound(10 * MS, 2 * MS - 800 / CACHED)


def test_float32_in_place_of_float64():
    calls = [kernel(dtype="float64"), kernel("_to_copy", dtype="float32"), kernel()]
    found = measured(10 * MS, calls)
    assert bounds(found)["float32 in place of float64"] == bound(10, 0.5 + 1)
    assert "float32 in place of float64" not in bounds(measured(10 * MS, [kernel()]))


def test_bfloat16():
    """Four times the rate; half the other traffic; each weight is cast, and its gradient back."""
    numbers = 100_000
    product = call("mm", flops=4 * MILLION, seconds=4 * MS)
    found = measured(10 * MS, [product, kernel()], held=Held(parameters=4 * numbers))
    share = 1 - RATES["float32"] / RATES["bfloat16"]
    casts = 2 * numbers * (4 + 2) / BANDWIDTH
    assert bounds(found)["bfloat16"] == bound(10 * MS, share * 4 * MS + MS / 2 - casts)


def test_bfloat16_is_not_offered_where_nothing_multiplies_or_all_is_in_it():
    product = call("mm", flops=MILLION, seconds=4 * MS, dtype="bfloat16")
    assert "bfloat16" not in bounds(measured(5 * MS, [product]))
    assert "bfloat16" not in bounds(measured(5 * MS, [kernel()]))


def test_bfloat16_is_not_offered_where_it_is_no_faster(monkeypatch):
    monkeypatch.setitem(RATES, "bfloat16", RATES["float32"])
    product = call("mm", flops=MILLION, seconds=4 * MS)
    assert "bfloat16" not in bounds(measured(5 * MS, [product]))


def test_a_fused_attention_keeps_its_arithmetic_and_nothing_else():
    """All that has as many numbers as the scores: products, their scale and softmax; no other."""
    scores = ((2, 8, 8),)
    calls = [
        call("bmm", bytes=MILLION, flops=MILLION // 4, seconds=2 * MS, shapes=((2, 8, 4), *scores)),
        kernel("div", shapes=scores),
        kernel("_softmax", shapes=scores),
        kernel("mul", shapes=((2, 8, 4),)),
    ]
    found = measured(8 * MS, calls)
    arithmetic = MILLION / 4 / RATES["float32"]
    assert bounds(found)["a fused attention"] == bound(
        8 * MS, 2 * MS - arithmetic + 1 * MS + 1 * MS
    )


@pytest.mark.parametrize("shape", [(2, 8, 5), (8, 8)], ids=["not square", "of a classifier"])
def test_a_softmax_that_is_no_attention_is_not_fused(shape):
    found = measured(2 * MS, [kernel("_softmax", shapes=(shape,))])
    assert "a fused attention" not in bounds(found)


def test_channels_last_spares_what_a_convolution_takes_above_its_floor():
    convolution = call("convolution", bytes=MILLION, flops=2 * MILLION, seconds=3 * MS)
    product = call("mm", bytes=MILLION, seconds=3 * MS)
    found = measured(8 * MS, [convolution, product])
    assert bounds(found)["channels last"] == bound(8, 3 - 2)
    assert "channels last" not in bounds(measured(8 * MS, [product]))


def test_more_threads(monkeypatch):
    monkeypatch.setattr(machine, "threads", lambda: 4)
    assert bounds(measured(2 * MS, [kernel()], threads=1))["more threads"] == bound(2, 0.75)
    assert bounds(measured(2 * MS, [kernel()], threads=2))["more threads"] == bound(2, 0.5)
    assert "more threads" not in bounds(measured(2 * MS, [kernel()], threads=4))
    assert "more threads" not in bounds(measured(2 * MS, [kernel()], device="cuda:0"))


def loop(turns, weight=7):
    """Each turn multiplies with one weight, and adds; a product takes 1 ms, of it 0.25 ms of
    arithmetic.
    """
    product = {"bytes": MILLION, "flops": MILLION // 4, "seconds": MS}
    return [
        each
        for n in range(turns)
        for each in (
            call("mm", reads=(100 + n, weight), value=n, **product),
            call("add", bytes=MILLION, seconds=MS, value=1000 + n),
        )
    ]


def test_one_call_in_place_of_a_loop_keeps_its_arithmetic():
    turns = 10
    found = measured(25 * MS, loop(turns))
    kinds = 2  # of calls, of which one each is left
    host = (1 - kinds / (kinds * turns)) * 5 * MS
    saved = turns * (2 * MS - 0.25 * MS) + host
    assert bounds(found)["one call in place of many"] == bound(25 * MS, saved)


def test_a_few_products_with_one_weight_are_no_loop():
    assert "one call in place of many" not in bounds(measured(25 * MS, loop(repetition.MANY - 1)))


def test_products_with_many_weights_are_no_loop():
    calls = [call("mm", bytes=10, flops=10, seconds=MS, reads=(n,), value=n) for n in range(20)]
    assert "one call in place of many" not in bounds(measured(25 * MS, calls))


def test_what_is_computed_twice_may_be_computed_once():
    """The second time is saved, and twice as much in the backward pass."""
    calls = [kernel(value=1, place="a.py:1"), kernel(value=1, place="a.py:2"), kernel(value=2)]
    calls += [kernel(phase="backward")] * 6
    found = {cure.name: cure for cure in cures.cures(measured(20 * MS, calls))}
    assert found["compute it once"].bound == bound(20, 1 + 2)
    assert found["compute it once"].why.endswith("at a.py:2")
    assert "compute it once" not in bounds(measured(20 * MS, calls[1:]))


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_no_cure_saves_more_than_the_step(device):
    """All causes at once, in a step that is too short for them."""
    calls = [
        *loop(9),
        kernel("_softmax", shapes=((2, 8, 8),)),
        kernel("add_", phase="optimizer"),
        kernel("convolution", flops=10),
        kernel(dtype="float64"),
    ]
    profile = Profiled(span=1 * MS, after_waits=0.5 * MS, messages=1 * MS)
    options = {"waited": 1 * MS, "optimizing": 1 * MS, "can_fuse": True, "profile": profile}
    found = measured(4 * MS, calls, device=device, **options)
    assert all(1 < cure.bound <= 1 / (1 - cures.MOST) * 1.001 for cure in cures.cures(found))
    assert sum(found.parts.values()) == pytest.approx(4 * MS)


def test_a_call_by_itself_costs_what_is_told_of_it():
    """The made-up machine: so that the sums above are about these numbers."""
    assert (COSTS.plain, COSTS.differentiated, COSTS.watched) == (1e-6, 2e-6, 3e-6)
    assert verdict.MANY_TIMES * COSTS.differentiated == pytest.approx(20e-6)


# What is not there to be saved


def test_what_has_no_backward_pass_saves_none():
    """Two equal halves: without one of them the step is twice as fast, and no more."""
    calls = [kernel(value=1), kernel(value=1)]
    assert bounds(measured(2 * MS, calls))["compute it once"] == bound(2, 1)
    calls += [kernel(phase="backward")]
    # The backward pass is half as long as the forward pass, so half of a kernel's time goes too.
    assert bounds(measured(3 * MS, calls))["compute it once"] == bound(3, 1 + 0.5)


def test_traffic_that_is_in_16_bits_already_is_not_halved_again():
    product = call("mm", flops=MILLION, seconds=1 * MS)
    found = measured(9 * MS, [product, *[kernel(dtype="bfloat16")] * 8])
    assert bounds(found)["bfloat16"] == bound(9, 0.75)


def test_a_convolution_at_its_floor_has_no_layout_to_gain():
    convolution = call("convolution", bytes=MILLION, flops=3 * MILLION, seconds=3 * MS)
    assert "torch.compile" not in bounds(measured(3 * MS, [convolution]))
    convolution = call("convolution", bytes=MILLION, flops=3 * MILLION, seconds=5 * MS)
    assert bounds(measured(5 * MS, [convolution]))["torch.compile"] == bound(5, 1)


@pytest.mark.parametrize(
    "change", [{"operator": "c10d::allreduce_"}, {"operator": "copy_", "moves_between": True}]
)
def test_messages_and_copies_are_not_compiled_away_nor_faster_with_threads(change, monkeypatch):
    monkeypatch.setattr(machine, "threads", lambda: 2)
    found = bounds(measured(1 * MS, [call(bytes=10, seconds=MS, **change)]))
    assert not found.keys() & {"torch.compile", "more threads", "bfloat16"}


def test_a_larger_batch_fills_small_kernels():
    """A kernel of 0.1 ms at its floor that takes 1 ms, and one that is large enough."""
    small, large = (
        call("mul", bytes=MILLION // 10, seconds=MS),
        call("exp", bytes=MILLION, seconds=2 * MS),
    )
    assert bounds(measured(3 * MS, [small, large]))["a larger batch"] == bound(3, 0.75 * 0.9)
