"""Schedules and their simulator: against the formulas of the papers, and against timelines made by
hand.
"""

import matplotlib.pyplot as plt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ed_lib.parallel.links import Link
from ed_lib.parallel.schedules import SCHEDULES, Instruction, bubble, interleaved, repeat, warmup
from ed_lib.parallel.simulator import simulate

BACKPROPAGATION = ("naive", "gpipe", "1f1b", "zb_h1", "zb_h2")
stages = st.integers(1, 8)
microbatches = st.integers(1, 12)
times = st.integers(0, 9)  # integers: the sums are exact
some = settings(max_examples=60, deadline=None)


def seconds(name, p, m, **times):
    return simulate(SCHEDULES[name], p, m, times).seconds


def period(name, p, m, **times):
    """What one more batch takes, once batches have followed one another for long."""
    n = 3 * p + 6
    timeline = simulate(repeat(SCHEDULES[name], n), p, m, times)
    first, last = (timeline.begins(0, batch * m) for batch in (n - 4, n - 1))
    return (last - first) / 3


@pytest.mark.parametrize("name", SCHEDULES)
@given(p=stages, m=microbatches)
@some
def test_every_stage_works_on_each_microbatch_once(name, p, m):
    for stage in range(p):
        done = [(do.op, do.microbatch) for do in SCHEDULES[name](stage, p, m)]
        ops = {"backward_input", "backward_weight"} if name.startswith("zb") else {"backward"}
        for op in {"forward", *ops}:
            assert [i for o, i in done if o == op] == list(range(m))  # in order, none twice
        assert {op for op, _ in done} <= {"forward", "send", "receive", "step", *ops}
        assert [op for op, _ in done].count("step") == 1
        for i in range(m):
            order = [done.index((op, i)) for op in ("forward", *sorted(ops))]
            assert order == sorted(order)  # forward before backward (before the weights')


def test_repeating_numbers_the_microbatches_on():
    once = list(SCHEDULES["1f1b"](0, 2, 3))
    thrice = list(repeat(SCHEDULES["1f1b"], 3)(0, 2, 3))
    assert thrice[: len(once)] == once and len(thrice) == 3 * len(once)
    assert [do.microbatch for do in thrice if do.op == "forward"] == list(range(9))
    assert [do.microbatch for do in thrice if do.op == "step"] == [-1] * 3


@pytest.mark.oracle
@given(p=stages, m=microbatches, f=times, b=times)
@some
def test_the_times_of_naive_gpipe_and_1f1b(p, m, f, b):
    assert seconds("naive", p, m, forward=f, backward=b) == m * p * (f + b)
    for name in ("gpipe", "1f1b"):
        assert seconds(name, p, m, forward=f, backward=b) == (m + p - 1) * (f + b)


@pytest.mark.oracle
@given(p=stages, m=microbatches, f=st.integers(1, 9), b=st.integers(1, 9))
@some
def test_the_bubble(p, m, f, b):
    """A stage waits for each of p − 1 others, and works for each of m micro-batches; the published
    formulas, of one, and of stages that all take as long.
    """

    def idle(name, m=m, **times):
        return pytest.approx(1 - simulate(SCHEDULES[name], p, m, times).busy, abs=1e-12)

    assert bubble(p, m) == (p - 1) / (m + p - 1)  # Huang et al. (2019), section 2.3
    for name in ("gpipe", "1f1b"):
        assert bubble(p, m) == idle(name, forward=f, backward=b)
    w = min(f, b)
    split = idle("zb_h1", m + p, forward=f, backward_input=b, backward_weight=w)
    # ZB-H1 waits f + b − w for each other stage, and works f + b + w: Qi et al. (2024), as below.
    waits, works = (p - 1) * (f + b - w), (m + p) * (f + b + w)
    assert waits / (waits + works) == split
    assert 1 - 1 / p == idle("naive", forward=f, backward=b)


@pytest.mark.oracle
@given(p=stages, extra=st.integers(0, 6), f=times, b=times, w=times)
@some
def test_the_time_of_zb_h1(p, extra, f, b, w):
    """Qi et al. (2024), section 2.3: for at least p micro-batches, and t_w at most t_f and t_b."""
    m, w = p + extra, min(w, f, b)
    taken = seconds("zb_h1", p, m, forward=f, backward_input=b, backward_weight=w)
    assert taken == (p - 1) * (f + b - w) + m * (f + b + w)


@pytest.mark.oracle
def test_zb_h1_by_hand_where_the_formula_does_not_hold():
    """t_w = 2: stage 1 does F B F B W W from 1 to 9; stage 0 F F, waits from 2 to 3, B W B W."""
    assert seconds("zb_h1", 2, 2, forward=1, backward_input=1, backward_weight=2) == 9  # formula: 8


@pytest.mark.oracle
@given(p=stages, extra=st.integers(0, 4))
@settings(max_examples=25, deadline=None)
def test_zb_h2_has_no_bubble_between_batches(p, extra):
    unit = dict(forward=1, backward_input=1, backward_weight=1)
    m = 2 * p - 1 + extra
    assert period("zb_h2", p, m, **unit) == 3 * m
    assert period("zb_h1", p, m, **unit) == 3 * m + p - 1  # here one remains, a third of 1F1B's
    assert period("1f1b", p, m, forward=1, backward=2) == 3 * (m + p - 1)


def test_zb_h2_has_a_bubble_where_microbatches_are_few():
    assert period("zb_h2", 4, 4, forward=1, backward_input=1, backward_weight=1) > 12


@pytest.mark.oracle
@given(p=stages, m=microbatches)
@some
def test_live_activations(p, m):
    times = dict.fromkeys(("forward", "backward", "backward_input", "backward_weight"), 1)
    live = {name: simulate(schedule, p, m, times).live for name, schedule in SCHEDULES.items()}
    assert live["naive"] == [1] * p
    assert live["gpipe"] == [m] * p
    assert live["1f1b"] == [min(m, p - s) for s in range(p)]
    assert live["zb_h1"] == [min(m, p)] * p
    assert live["zb_h2"] == [min(m, 2 * p - 1)] * p


@pytest.mark.oracle
def test_a_slow_stage_sets_the_pace():
    slow = simulate(SCHEDULES["gpipe"], 3, 4, {"forward": [1, 5, 1]})
    assert slow.seconds == 1 + 4 * 5 + 1
    assert [slow.begins(1, i) for i in range(4)] == [1, 6, 11, 16]


@pytest.mark.oracle
def test_the_latency_and_the_bandwidth_of_a_link_by_hand():
    """Messages of 1 + 10·0.1 = 2 s. Forward 1 s: the link is the slower, and messages queue on
    it.
    """
    link, sizes = Link(1.0, 0.1), {"activation": 10}
    timeline = simulate(SCHEDULES["gpipe"], 2, 3, {"forward": 1}, link, sizes)
    assert [timeline.begins(0, i) for i in range(3)] == [0, 1, 2]  # sends don't hold stage 0 up
    assert [timeline.begins(1, i) for i in range(3)] == [
        3,
        5,
        7,
    ]  # arrivals: 1 + 2, then one every 2
    no_bytes = simulate(SCHEDULES["gpipe"], 2, 3, {"forward": 1}, link)
    assert [no_bytes.begins(1, i) for i in range(3)] == [2, 3, 4]  # α alone


@pytest.mark.oracle
def test_the_two_directions_of_a_link_are_apart():
    """Naive, two stages: forward 1, message 2, forward 1, backward 1, message 4, backward 1, in
    turn.
    """
    sizes = {"activation": 2, "gradient": 4}
    timeline = simulate(
        SCHEDULES["naive"], 2, 3, {"forward": 1, "backward": 1}, Link(0.0, 1.0), sizes=sizes
    )
    assert timeline.seconds == 3 * 10
    # 1F1B: activations go down (0-1 → 3, 1-2 → 5) while gradients come up.
    timeline = simulate(
        SCHEDULES["gpipe"], 2, 2, {"forward": 1, "backward": 1}, Link(0.0, 1.0), sizes=sizes
    )
    assert timeline.begins(1, 1) == 5 and timeline.begins(1, 0, "backward") == 6
    assert timeline.begins(0, 0, "backward") == 7 + 4  # its gradient leaves at 7
    assert timeline.begins(0, 1, "backward") == 15  # the next waits for the link until 11
    assert timeline.seconds == 16


@pytest.mark.oracle
@pytest.mark.parametrize("name", SCHEDULES)
@given(p=stages, m=microbatches)
@settings(max_examples=20, deadline=None)
def test_messages_are_counted(name, p, m):
    found = simulate(SCHEDULES[name], p, m, {"forward": 1}).messages
    back = [("gradient", s + 1, s) for s in range(p - 1)]
    assert found == dict.fromkeys([("activation", s, s + 1) for s in range(p - 1)] + back, m)


def waits_for_ever(stage, stages, microbatches):
    """Each of two stages first receives what the other would send later."""
    yield Instruction("receive", 0, "activation", 1 - stage)
    yield Instruction("send", 0, "activation", 1 - stage)


def test_a_schedule_that_stops_is_an_error_that_names_who_waits():
    with pytest.raises(
        ValueError, match=r"no stage can go on.*\{0: .*peer=1, .*, 1: .*peer=0, .*\}"
    ):
        simulate(waits_for_ever, 2, 1, {})


def test_the_drawing_has_one_box_for_each_computation_in_its_row_at_its_time():
    timeline = simulate(
        SCHEDULES["zb_h1"], 3, 4, dict(forward=1, backward_input=2, backward_weight=0.5)
    )
    fig, ax = plt.subplots()
    timeline.draw(ax)
    boxes = {(round(b.get_y() + 0.43), b.get_x(), b.get_width()) for b in ax.patches}
    wanted = {(e.stage, e.start, e.end - e.start) for e in timeline.events if e.op != "step"}
    assert boxes == wanted and len(ax.patches) == len(ax.texts) == 3 * 4 * 3
    assert len({b.get_facecolor() for b in ax.patches}) == 3
    plt.close(fig)


@pytest.mark.oracle
@given(
    p=st.integers(2, 8), v=st.integers(1, 4), groups=st.integers(1, 4), f=st.integers(1, 9), b=times
)
@settings(max_examples=200, deadline=None)
def test_interleaving_has_the_published_bubble_messages_and_memory(p, v, groups, f, b):
    """f, b: of one chunk, a v-th of a stage. A bubble of (p − 1)(f + b), where 1F1B has v times
    that.
    """
    m = groups * p
    timeline = simulate(interleaved(v), p, m, {"forward": f, "backward": b})
    assert timeline.seconds == (m * v + p - 1) * (f + b)
    assert 1 - timeline.busy == pytest.approx(bubble(p, m, v), abs=1e-12)
    # Narayanan et al. (2021), section 2.2: of the work it is (p − 1) / (v m).
    share = bubble(p, m, v)
    assert share / (1 - share) == pytest.approx((p - 1) / (v * m))
    assert sum(timeline.messages.values()) == 2 * (v * p - 1) * m
    # Megatron-LM: without chunks p − 1 − s go first; with them, twice that, and the other chunks'.
    ahead = [p - 1 - s if v == 1 else 2 * (p - 1 - s) + (v - 1) * p for s in range(p)]
    assert timeline.live == [min(m * v, n + 1) for n in ahead]
    assert timeline.live == [min(m * v, warmup(s, p, m, v) + 1) for s in range(p)]
    if v == 1:
        assert timeline == simulate(SCHEDULES["1f1b"], p, m, {"forward": f, "backward": b})
