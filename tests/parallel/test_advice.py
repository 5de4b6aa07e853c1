"""The recommendation in cases whose answer is plain, and its times against sums by hand."""

import dataclasses

import pytest

from ed_lib.parallel import advice
from ed_lib.parallel.ranks.costs import Link

GPU = advice.Devices(8, rate=1e14, bandwidth=3e12, launch=5e-6, memory=80 * 2**30, link=Link(1e-5, 1e-11))


SLOW = dataclasses.replace(GPU, link=Link(1e-3, 1e-9))


@pytest.mark.parametrize(
    "devices, job, names",
    [
        (GPU, (16, 1024, 10**6), ["data parallel"]),  # a large batch of a small model
        (GPU, (16, 20_000, 64), ["pipeline", "tensor parallel"]),  # many parameters and few samples
        (GPU, (4, 64, 32), ["one device"]),  # a tiny step
        (SLOW, (64, 8192, 4096), ["pipeline"]),  # over a slow link, what sends least
    ],
)
def test_the_recommendation_where_it_is_plain(devices, job, names):
    plan, because = advice.recommend(advice.Job(*job), devices)
    assert plan.name in names and because[0].startswith(plan.name) and len(because) == 5


def test_a_model_that_does_not_fit_is_never_put_on_one_device():
    job = advice.Job(
        layers=128, width=16_384, batch=64
    )  # 137 GB of parameters, 550 GB with what training adds
    obstacles = {plan.name: plan.obstacle for plan in advice.plans(job, GPU)}
    assert "GiB of the 80 GiB" in obstacles["one device"] and "GiB" in obstacles["data parallel"]
    assert all(obstacles[way] == "" for way in ("pipeline", "tensor parallel", "sharded data parallel"))
    assert advice.recommend(job, GPU)[0].name in ("pipeline", "tensor parallel")


@pytest.mark.oracle
def test_the_times_by_hand():
    devices = advice.Devices(2, rate=1e9, bandwidth=1e30, launch=0, memory=1e12, link=Link(1e-3, 1e-9))
    job = advice.Job(layers=4, width=100, batch=50)
    compute = 3 * 2 * 4 * 100**2 * 50 / 1e9  # 12 ms
    found = {plan.name: plan for plan in advice.plans(job, devices)}
    assert found["one device"].seconds == pytest.approx(compute)
    ring = 2e-3 + 160_000 * 1e-9  # 2(p − 1)α + 2(p − 1)/p n β; in buckets each pays the latency
    assert found["data parallel"].seconds == pytest.approx(compute / 2 + ring)  # the last hides nowhere
    near = dataclasses.replace(devices, link=Link(1e-6, 1e-9))
    last = 2e-6 + 160_000 / 4 * 1e-9  # one of four buckets: as many as there are layers
    assert advice.plans(job, near)[1].seconds == pytest.approx(compute / 2 + last)
    dear = dataclasses.replace(devices, link=Link(1e-3, 1e-7))
    slow = advice.plans(job, dear)[1].seconds  # 16 ms of bytes: four buckets begin soonest
    assert slow == pytest.approx(compute / 6 + min(compute / 3 / k + k * 2e-3 + 0.016 for k in (1, 2, 3, 4)))
    each = 2 * 1e-3 + 20_000 * 1e-9
    assert found["tensor parallel"].seconds == pytest.approx(compute / 2 + 4 * each)
    assert all(plan.computing == pytest.approx(compute / 2) for n, plan in found.items() if n != "one device")
    m = 2  # with this latency, few micro-batches are best: two full bubbles' worth of stages and messages
    assert found["pipeline"].seconds >= compute / 2 * (m + 1) / m
    free = dataclasses.replace(devices, link=Link(0, 0))
    pipe = advice.plans(job, free)[3]
    assert pipe.seconds == pytest.approx(compute / 2 * (16 + 1) / 16)  # the bubble of 8p micro-batches


@pytest.mark.oracle
def test_sharding_divides_the_memory_and_sends_half_as_much_again():
    free = dataclasses.replace(GPU, link=Link(0, 1e-11), memory=1e15, launch=0)
    job = advice.Job(layers=100, width=8192, batch=64)  # so few samples that sending decides
    found = {plan.name: plan for plan in advice.plans(job, free)}
    whole, shards = found["data parallel"], found["sharded data parallel"]
    ring = 2 * 7 / 8 * job.parameters * 1e-11
    assert shards.seconds == pytest.approx(1.5 * ring, rel=0.02)
    assert whole.seconds == pytest.approx(ring, rel=0.2) and whole.computing == shards.computing
    assert shards.memory == pytest.approx(job.state / 8, rel=0.1)
    assert whole.memory == job.state + 100 * job.activations / 8 and job.state == 4 * job.parameters
    many = advice.Job(layers=100, width=8192, batch=2**17)  # and so many that computing does
    found = {plan.name: plan for plan in advice.plans(many, free)}
    assert found["sharded data parallel"].seconds == pytest.approx(found["data parallel"].computing, rel=0.02)


@pytest.mark.oracle
def test_reading_the_weights_and_launching_bound_few_samples():
    devices = advice.Devices(2, rate=1e12, bandwidth=1e10, launch=1e-4, memory=1e12, link=Link(0, 0))
    job = advice.Job(layers=4, width=1000, batch=64)  # arithmetic 0.128 ms a layer; reading 0.4 ms
    found = {plan.name: plan.seconds for plan in advice.plans(job, devices)}
    assert found["one device"] == pytest.approx(3 * 4 * (1e-4 + 4e-4))
    assert found["data parallel"] == pytest.approx(
        found["one device"]
    )  # half of the samples, all of the weights
    assert found["tensor parallel"] == pytest.approx(3 * 4 * (1e-4 + 2e-4))
    m = 2  # more micro-batches read the weights more often
    assert found["pipeline"] == pytest.approx((m + 1) * 3 * 2 * (1e-4 + 4e-4))


def test_what_cannot_be_divided_is_an_obstacle():
    obstacles = [plan.obstacle for plan in advice.plans(advice.Job(3, 5, 2), GPU)]
    assert obstacles[:2] == ["", "2 samples for 8 devices"] == ["", obstacles[2]]
    assert obstacles[3] == "3 layers for 8 devices"
    assert obstacles[4] == "5 cells in a layer for 8 devices"
