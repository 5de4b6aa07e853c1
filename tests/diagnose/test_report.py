"""What a report prints, lists, compares and draws."""

import re
from collections import Counter

import matplotlib.pyplot as plt
import pytest

from ed_lib.diagnose import report, verdict
from ed_lib.diagnose.compilation import Compilation
from ed_lib.diagnose.profiled import Profiled
from ed_lib.diagnose.report import Diagnosis
from ed_lib.diagnose.verdict import Held
from ed_lib.timing import Timing
from tests.diagnose.made_up import BANDWIDTH, RATES, call, measured

MS = 1e-3
LINES, COLUMNS = 40, 88
MILLION = 1_000_000


def of_a_step(**change):
    calls = [
        call("mm", bytes=MILLION, flops=4 * MILLION, seconds=5 * MS, place="model.py:7"),
        call("bmm", bytes=MILLION // 2, flops=MILLION, seconds=MS, phase="backward"),
        call("mul", bytes=2 * MILLION, seconds=2 * MS),
        call("add_", bytes=MILLION, seconds=MS, phase="optimizer"),
    ]
    options = {"waited": 1 * MS, "held": Held(10 * MILLION, 4 * MILLION, 4 * MILLION, 0, MILLION)}
    return Diagnosis(measured(12 * MS, calls, **options | change))


def of_everything():
    """A step with all that a report can tell, and long names."""
    long = "a_very_long_library::an_operator_with_a_very_long_name"
    place = "a_module_with_a_long_name_of_its_own.py:1234"
    calls = [
        call(
            f"{long}_{n}", bytes=10_000 * n, flops=n, seconds=n * MS, place=place, dtype="bfloat16"
        )
        for n in range(1, 30)
    ]
    calls += [call("_local_scalar_dense", place=f"{n}_{place}", outside=9 * MS) for n in range(9)]
    calls += [call("_softmax", seconds=9 * MS, bytes=10, shapes=((2, 8, 8),), place=place)]
    calls += [call("mm", seconds=9 * MS, flops=9, bytes=9, reads=(n % 2,)) for n in range(40)]
    breaks = {
        f"a reason for a break that is very long, as they are: {n} {'x' * 60}": 1 for n in range(12)
    }
    compilation = Compilation(30, breaks, breaks)
    profile = Profiled(compiled=1 * MS)
    held = Held(
        peak=10**13, parameters=10**12, gradients=10**12, activations=10**12, reserved=10**12
    )
    return Diagnosis(
        measured(
            1.5,
            calls,
            waited=0.1,
            optimizing=0.1,
            can_fuse=True,
            profile=profile,
            compilation=compilation,
            held=held,
        )
    )


@pytest.mark.parametrize("make", [of_a_step, of_everything])
def test_a_report_fits_one_screen(make):
    lines = str(make()).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS


def test_a_report_of_nothing_fits_too():
    text = str(Diagnosis(measured(1e-6)))
    assert text.startswith("The step waits most for: not explained\n")


def test_a_report_begins_with_its_verdict_and_what_was_counted():
    first, second, third = str(of_a_step()).splitlines()[:3]
    assert first == "The step waits most for: arithmetic"
    assert second == "the step takes 12 ms (quartiles 12 ms to 12 ms, n = 4)"
    assert third == "4 calls, 0.005 GFLOP, 4.5 MB moved"


def test_a_report_prints_the_parts_that_are_there():
    """4 + 1 ms of arithmetic, 2 + 1 ms of traffic, 1 ms above a floor, 1 ms of data; the rest is
    calls, at the most 20 µs each, and not explained.
    """
    text = str(of_a_step())
    shares = re.findall(r"^ +(\d+)% +\S+ \S+  (.+)$", text, re.M)
    wanted = {"data": 8, "memory traffic": 25, "arithmetic": 42, "kernels above their floors": 8}
    wanted |= {"calls": 1, "not explained": 16}
    assert {name: int(share) for share, name in shares} == wanted
    assert (
        "memory in MB: parameters 4, gradients 4, optimizer 0, activations 1;\n  peak of a step 10"
        in text
    )


def test_a_report_says_that_a_time_varies_what_is_waited_for_and_what_a_loss_ignores():
    loss = call("nll_loss_forward", seconds=1e-3, ignored=0.75, place="train.py:9")
    found = measured(4e-3, [loss], waited=2e-3, waits=Counter({"data.py:3": 5}))
    steady = str(Diagnosis(found))
    assert "waits for batches at: data.py:3" in steady and "varies" not in steady
    assert "the loss ignores 75% of its rows; their scores need none: train.py:9" in steady
    found.timing = Timing(4e-3, 3e-3, 5e-3, 4)
    assert "its time varies: close other programs" in str(Diagnosis(found))


def test_cures_are_printed_with_their_bounds():
    one = of_a_step()
    printed = re.findall(r"^ +(\d+\.\d\d)  ([^:]+): ", str(one), re.M)
    assert printed == [(f"{cure.bound:.2f}", cure.name) for cure in one.cures[: report.OFFERED]]


def test_html_is_the_same_text_escaped():
    one = of_a_step()
    one.verdict = "a < b & c"
    assert one._repr_html_().startswith("<pre>The step waits most for: a &lt; b &amp; c\n")


def test_the_lines_that_hand_numbers_to_the_host_are_named():
    calls = [call("_local_scalar_dense", place=f"train.py:{n}") for n in (3, 3, 4, 5, 6, 7)]
    calls += [call("_local_scalar_dense", place="adam.py:1", phase="optimizer")]
    told = (
        "hands numbers to the host: train.py:3 (2 times), train.py:4, train.py:5 and 2 lines more"
    )
    assert told in str(Diagnosis(measured(MS, calls))).splitlines()


def test_the_line_that_does_other_things_for_long_is_named():
    calls = [call("neg", outside=2 * MS, place="train.py:9"), call("neg", place="train.py:10")]
    text = str(Diagnosis(measured(4 * MS, calls)))
    assert "outside PyTorch, just before these lines: 2 ms at train.py:9\n" in f"{text}\n"
    # Lines have no more time together than the part has.
    text = str(Diagnosis(measured(1 * MS, calls)))
    assert "outside PyTorch, just before these lines: 1 ms at train.py:9\n" in f"{text}\n"


def test_steps_that_were_not_put_back_and_a_busy_device_are_told():
    assert "trained" not in str(of_a_step()) and "busy" not in str(of_a_step())
    found = of_a_step(profile=Profiled(span=4 * MS, busy=1 * MS, kernels=7))
    found.measured.restored = False
    assert "the device was busy 25% of the time, 7 kernels" in str(found)
    assert f"{found.measured.steps} steps were trained, and nothing was put back" in str(found)


def test_a_compiled_step_tells_its_graphs_breaks_and_why_it_compiled_again():
    made = Compilation(3, {"print()": 2}, {"x's shape": 1})
    text = str(of_a_step(compilation=made, profile=Profiled(compiled=MS)))
    assert (
        "torch.compile: 3 graphs, 2 breaks\n  break: print()\n  compiled again: x's shape" in text
    )
    many = {str(n): n for n in range(9)}
    text = str(of_a_step(compilation=Compilation(3, many, {}), profile=Profiled(compiled=MS)))
    assert text.endswith("3 graphs, 36 breaks\n  break: 8\n  break: for 8 reasons more")
    # The compiler was used in this process, but not by this step.
    assert "torch.compile:" not in str(of_a_step(compilation=made)).partition("memory in MB")[2]


def test_the_table_has_the_operators_heaviest_first():
    table = of_a_step().table
    assert list(table.operator) == ["mm", "mul", "bmm", "add_"]
    assert list(table.phase) == ["forward", "forward", "backward", "optimizer"]
    assert list(table.calls) == [1, 1, 1, 1] and set(table.dtype) == {"float32"}
    assert list(table.bytes) == [MILLION, 2 * MILLION, MILLION // 2, MILLION]
    assert list(table.FLOPs) == [4 * MILLION, 0, MILLION, 0]
    assert list(table.seconds) == pytest.approx([5 * MS, 2 * MS, MS, MS])
    assert list(table.floor) == pytest.approx([4 * MS, 2 * MS, MS, MS])


def test_a_cure_is_compared_part_by_part():
    before = of_a_step()
    after = Diagnosis(
        measured(4 * MS, [call("mm", flops=3 * MILLION, seconds=3 * MS)], waited=1 * MS)
    )
    head, *lines, last = before.compare(after).splitlines()
    assert head.split() == ["before", "after"]
    found = {line[:28].strip(): line[28:].split() for line in lines}
    assert found["data"] == ["1", "ms", "1", "ms"]
    assert found["arithmetic"] == ["5", "ms", "3", "ms"]
    assert found["memory traffic"] == ["3", "ms", "0", "µs"]
    assert found["the step"] == ["12", "ms", "4", "ms"]
    assert verdict.COPIES not in found
    assert last == "3 times as fast; it waits most for: arithmetic"


def test_the_roofline_has_the_operators_that_multiply():
    one = of_a_step()
    figure = one.figure()
    (axes,) = figure.axes
    try:
        assert axes.get_xlabel() and axes.get_ylabel() and axes.get_title()
        points = [tuple(each.get_offsets()[0]) for each in axes.collections]
        # mm: 4 FLOPs a byte, 4 MFLOP in 5 ms; bmm: 2 FLOPs a byte, 1 MFLOP in 1 ms
        assert points == [pytest.approx((4, 0.8)), pytest.approx((2, 1.0))]
        sizes = [float(each.get_sizes()[0]) for each in axes.collections]
        assert sizes[0] / sizes[1] == pytest.approx(5)
        assert [text.get_text() for text in axes.texts] == ["mm, 42%", "bmm, 8%"]
        (roof,) = axes.lines
        x, y = roof.get_xdata(), roof.get_ydata()
        assert y == pytest.approx([min(each * BANDWIDTH, RATES["float32"]) / 1e9 for each in x])
        assert min(x) < 2 < 4 < max(x)
        figure.canvas.draw()
    finally:
        plt.close(figure)


def test_a_step_that_multiplies_nothing_has_its_roof():
    figure = Diagnosis(measured(MS, [call("mul", bytes=10, seconds=MS)])).figure()
    try:
        figure.canvas.draw()
        assert figure.axes[0].lines and not figure.axes[0].collections
    finally:
        plt.close(figure)
