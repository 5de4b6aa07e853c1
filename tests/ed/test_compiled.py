"""What the ED layers' kernels are compiled to, for GPUs that need not be here: what they take of a
multiprocessor, and whether the instructions are those that the kernels were written for.
"""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

pytest.importorskip("triton")
from benchmarks import ed_variants  # noqa: E402
from ed_lib.ed import kernels  # noqa: E402
from tests import compiled  # noqa: E402

CHIPS = {75: 40, 80: 108, 90: 132, 100: 148}  # multiprocessors: T4, A100, H100 and H200, B200
ARTICLE = dict(cells=64, batch=64, depth=4096, networks=1)
MASKED = dict(cells=34, batch=63, depth=5, networks=3)
ONES = dict(cells=2, batch=1, depth=1, networks=1)  # in a launch each 1 becomes a constant
SINGLE, DOUBLE = torch.float32, torch.float64
pytestmark = pytest.mark.skipif(compiled.obstacle() is not None, reason=str(compiled.obstacle()))


@pytest.fixture
def on(monkeypatch):
    """on(target): from now on the launches are those on this GPU."""
    monkeypatch.setattr(kernels, "INTERPRETED", False)

    def choose(target):
        monkeypatch.setattr(kernels, "gpu", lambda like: (divmod(target, 10), CHIPS[target]))
        return target

    return choose


class Layers:
    """Arrays without memory; each method: a launch of a kernel with them → its job, in a list."""

    def __init__(self, target, cells, batch, depth, networks, n=1, dtype=SINGLE):
        empty = lambda *shape: torch.empty(shape, dtype=dtype, device="meta")  # noqa: E731
        self.target, self.x = target, empty(batch, cells // 2)
        self.states, self.out = empty(depth + 1, networks, batch, cells), empty(1, networks, batch, 2)
        self.weight, self.bias = empty(depth, networks, cells, cells), empty(depth, networks, n, cells)
        self.weight_out, self.bias_out = empty(1, networks, cells, 2), empty(1, networks, n, 2)
        self.error, self.rate = empty(batch, networks), empty()

    def jobs(self, name, call):
        return compiled.jobs(f"ed_lib.ed.kernels:{name}_kernel", call, self.target)

    def forward(self, **options):
        arrays = self.states, self.weight, self.bias
        return self.jobs("forward", lambda: kernels.forward(*arrays, 0.4, **options))

    def sweep(self, pair, first, last):
        arrays = self.states, self.states, self.weight, self.bias
        rest = torch.empty(6, device="meta"), pair, 1e-6, first, last
        return self.jobs("sweep", lambda: kernels.sweep(*arrays, 0.4, *rest))

    def update(self, rule, **options):
        arrays = self.weight, self.bias, self.states[:-1], self.states[1:], self.error, self.rate
        return self.jobs("update", lambda: kernels.update(*arrays, rule, **options))

    def update_outer(self, rule):
        """Of the input layer, and of the output layer."""
        first = self.weight[:1], self.bias[:1], self.x, self.states[:1]
        last = self.weight_out, self.bias_out, self.states[-1:], self.out
        learn = lambda arrays: kernels.update(*arrays, self.error, self.rate, rule)  # noqa: E731
        return self.jobs("update", lambda: [learn(arrays) for arrays in (first, last)])


def check(jobs):
    """That nothing spills, all fits, and the products and copies are as asked."""
    for job, made in zip(jobs, compiled.compiled(jobs), strict=True):
        asked, case = job.arguments, (job, made)
        assert made.spills == made.scratch == 0, case
        assert made.occupancy >= 1, case
        if asked["weight"] == "*fp32":  # products of float64 are for tensor cores too, where there are such
            assert bool(made.products) == (asked["PRECISION"] == "tf32x3" and asked["ROWS"] >= 16), case
        if "forward" in job.kernel and asked["depth"] > 1:  # the next layers' weights are on their way
            assert bool(compiled.count(made.loop, "LDGSTS|UTMALDG|UBLKCP")) == (job.target >= 80), case


def jobs_of(target):
    """The article's network, one whose arrays need masks, and on one GPU float64 and sizes of 1."""
    article, masked = Layers(target, **ARTICLE), Layers(target, **MASKED, n=2)
    jobs = article.forward() + article.update("signed")
    if target >= 80:
        jobs += article.sweep(2, 16, last=True) + masked.update("kaneko")
    if target == 90:
        jobs += Layers(90, **MASKED).forward() + masked.sweep(2, 3, last=True)
        double = Layers(90, **ARTICLE, dtype=DOUBLE)
        jobs += double.forward() + double.sweep(2, 16, last=True) + double.update("kaneko")
        ones, few = Layers(90, **ONES), Layers(90, **ONES | dict(batch=2), n=2)
        jobs += ones.forward() + ones.forward(unless=(ones.rate, 1.0)) + ones.sweep(1, 1, last=False)
        jobs += ones.update("signed") + few.update_outer("kaneko") + few.sweep(1, 0, last=True)
    return jobs


def test_the_kernels_fit_every_generation_of_gpus(on):
    targets = [target for target in CHIPS if target <= 90 or not compiled.obstacle(target)]
    check([job for target in targets for job in jobs_of(on(target))])


def test_every_cut_that_is_measured_can_be(on):
    layers = Layers(on(90), **ARTICLE)
    forward, *forwards = ed_variants.FORWARD
    update, *updates = ed_variants.UPDATE
    assert forward == kernels.forward_cut(layers.states)  # above
    assert update == kernels.update_cut(64, 64, layers.states)
    jobs = [job for cut in forwards for job in layers.forward(cut=cut)]
    check(jobs + [job for cut in updates for job in layers.update("signed", cut=cut)])
