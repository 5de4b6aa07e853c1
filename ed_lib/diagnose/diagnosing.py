"""``diagnose.step``: what is a training step waiting for?"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter, thread_time

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ed_lib import check, machine, timing
from ed_lib.diagnose import operators, places, verdict
from ed_lib.diagnose.compilation import compilation
from ed_lib.diagnose.contents import Contents
from ed_lib.diagnose.held import Saved, begin_to_hold, held
from ed_lib.diagnose.pairing import check_same, joined
from ed_lib.diagnose.profiled import Profiled, is_needed, profiled
from ed_lib.diagnose.report import Diagnosis
from ed_lib.diagnose.restoring import Kept
from ed_lib.diagnose.verdict import Measured
from ed_lib.diagnose.watching import Call, Watch

WARM_UP = 2  # steps: the first makes gradients and state, and compiles
TIMED = 4  # steps, at least
SECONDS = 0.6  # of timing, for short steps
WATCHED = 3  # steps, of which the first shows the second what its caches hold
MOST_STEPS = 1000
MOST_FOR_CALLS = 0.8  # of what was seen of the operators
OF_RANKS = 10  # steps that are timed where there are other ranks


def step(
    step: Callable,
    *,
    batches: Iterable | None = None,
    device: str = "cpu",
    restore: Iterable = (),
) -> Diagnosis:
    """Runs ``step()`` some ten times, or as often as 0.6 s allow, and reports what it waits for.

    step: a function that trains once, forward pass, backward pass and optimizer. batches: what
    yields its batches; then ``step(batch)`` is called, and the wait for a batch is measured.
    device: where the step computes, "cpu" or "cuda:0". restore: models, optimizers, schedulers,
    scalers that the step changes: they, and the random generators, are afterwards bit for bit what
    they were.

    TypeError for a step that cannot be called, batches that yield nothing, and a state that cannot
    be kept; ValueError for a device that is not there, a step that runs no operator, one whose work
    changes from run to run, and batches that end. What the step itself raises is raised; in every
    case what ``restore`` names is put back.
    """
    check.function("step", step)
    device = str(device)  # of a torch.device too
    machine.gpu(device)
    runner = _Runner(step, batches)
    kept = Kept(restore)
    try:
        measured = _measured(runner, device)
    finally:
        kept.put_back()
    measured.restored = kept.holds_state
    measured.parts = verdict.divide(measured)
    return Diagnosis(measured)


def _measured(runner, device) -> Measured:
    for _ in range(WARM_UP + runner.prefetched):
        runner.run()
    begin_to_hold(device)
    taken, waited, optimizing, processing = _timed(runner, device)
    calls, watch, saved, waits = _watched(runner)
    # Before the machine's prices are measured: that takes memory too.
    memory = held(runner.optimizers, saved, watch.peak, device)
    price = operators.prices(device)
    profile = Profiled()
    if is_needed(device):
        names = {call.operator for call in calls}
        profile = profiled(runner.run_on(runner.next()), names, device)
    if profile.compiled is not None:
        # What was watched between its operators is Python that the compiled step does not run.
        for call in calls:
            call.outside *= call.phase == "optimizer"
    price.set_own(calls)
    grouped = _with_seconds(operators.grouped(calls, price), profile, device)
    computing = np.subtract(taken, waited)
    calling = _of_calls(calls, price, profile)
    operators.shorten(grouped, calls, at_most=float(np.median(computing)) - calling)
    # Several workers of a loader end at the same time, so that one wait is long and the next ones
    # are short: their mean is what a step waits.
    wait = float(np.mean(waited))
    q1, middle, q3 = wait + np.percentile(computing, [25, 50, 75])
    return Measured(
        timing=timing.Timing(float(middle), float(q1), float(q3), len(taken)),
        waited=wait,
        optimizing=float(np.median(optimizing)),
        calls=calls,
        operators=grouped,
        price=price,
        profile=profile,
        held=memory,
        steps=runner.steps,
        compilation=compilation(),
        calling=calling,
        tail=watch.tail,
        processing=processing,
        waits=waits,
        can_fuse=runner.can_fuse,
    )


def _of_calls(calls, price, profile):
    """Seconds that the calls of a step cost at the least, on a processor, where no kernel runs
    meanwhile.
    """
    if price.device != "cpu":
        return 0.0
    each = {"optimizer": price.costs.plain}
    alone = [call for call in calls if profile.compiled is None or call.phase == "optimizer"]
    cost = sum(each.get(call.phase, price.costs.differentiated) for call in alone)
    return min(cost, MOST_FOR_CALLS * sum(call.seconds for call in calls))


class _Runner:
    """Calls the step, with the next batch if there are batches, and counts."""

    def __init__(self, step, batches):
        self._step = step
        self._batches: Iterator | None = None
        if batches is not None:
            self._batches = check.iterator("batches", batches, "a loader")
        self.steps = 0
        # A loader's workers are ahead by so many batches, which the first steps need not wait for.
        workers = getattr(batches, "num_workers", 0) or 0
        self.prefetched = workers * (getattr(batches, "prefetch_factor", 0) or 0)
        self.optimizers: list[torch.optim.Optimizer] = []

    def next(self) -> tuple:
        """The arguments of the next step."""
        if self._batches is None:
            return ()
        try:
            return (next(self._batches),)
        except StopIteration:
            raise ValueError(
                f"batches ended after {self.steps}; wanted at least "
                f"{WARM_UP + self.prefetched + TIMED + WATCHED + 2}"
            ) from None

    @property
    def can_fuse(self) -> bool:
        """Whether an optimizer has a fused kernel and does not use it."""
        return any("fused" in one.defaults and not one.defaults["fused"] for one in self.optimizers)

    def run_on(self, batch: tuple) -> Callable:
        """A function that runs one step on this batch."""

        def run():
            self._step(*batch)
            self.steps += 1

        return run

    def run(self) -> None:
        """One step on the next batch."""
        self.run_on(self.next())()

    @contextlib.contextmanager
    def optimizer_clock(self) -> Iterator[list[float]]:
        """Meanwhile each step of an optimizer adds its seconds to the list."""
        found: list[float] = []
        began: list[float] = []

        def before(optimizer, *_):
            if optimizer not in self.optimizers:
                self.optimizers.append(optimizer)
            began.append(timing.now())

        def after(*_):
            found.append(timing.now() - began.pop())

        hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        try:
            yield found
        finally:
            for hook in hooks:
                hook.remove()


def _timed(runner, device):
    """[seconds of a step], of them the wait for its batch, and those in optimizers; and the mean
    seconds of a step in which this thread did not wait.
    """
    processing = thread_time()
    taken: list[float] = []
    waited: list[float] = []
    optimizing: list[float] = []
    while not _is_enough(taken):
        # The optimizer's clock waits for a GPU, so there it runs in one step alone, the first.
        is_clocked = device == "cpu" or not taken
        with runner.optimizer_clock() if is_clocked else contextlib.nullcontext([]) as spans:
            start = timing.now()
            batch = runner.next()
            waited.append(perf_counter() - start)
            runner.run_on(batch)()
            taken.append(timing.now() - start)
        if is_clocked:
            optimizing.append(sum(spans))
    return taken, waited, optimizing, (thread_time() - processing) / len(taken)


def _is_enough(taken):
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # By its own clock one rank would stop before another, which would wait for it for ever.
        return len(taken) == OF_RANKS
    return len(taken) >= TIMED and (sum(taken) >= SECONDS or len(taken) >= MOST_STEPS)


def _watched(runner) -> tuple[list[Call], Watch, int, Counter]:
    """The calls of one step, each with its median time in the watched steps; who watched them; the
    bytes that the forward pass keeps for the backward pass; and the lines at which batches were
    waited for.
    """
    watch = Watch()
    runs = []
    saved = Saved()
    for n in range(WATCHED):
        begin = len(watch.calls)
        with places.looked_at() as waits:
            batch = runner.next()
        run = runner.run_on(batch)
        if n < WATCHED - 1:
            with watch:
                run()
        else:
            saved.count(watch, run)
        runs.append(watch.calls[begin:])
    with Contents() as contents:
        runner.run()
    first, *later = runs
    if not first:
        raise ValueError("step ran no operator of PyTorch's; wanted a function that trains once")
    for each in later:
        check_same(first, each)
    return joined(runs, contents.calls), watch, saved.bytes, waits


def _with_seconds(found, profile: Profiled, device):
    """The operators with the profiler's seconds, where the host's clock does not see their work: on
    a GPU, and in a compiled step.
    """
    if device == "cpu" and profile.compiled is None:
        return found
    for name, seconds in profile.operators.items():
        ones = [one for one in found if one.name == name]
        floors = sum(one.floor for one in ones)
        for one in ones:
            one.seconds = seconds * (one.floor / floors if floors else 1 / len(ones))
    if profile.compiled is None:
        return found
    # What was compiled away is one operator now; what is left runs by itself.
    alone = [one for one in found if one.phase == "optimizer" or one.name in profile.operators]
    code = operators.Operator("forward", "compiled code", calls=1, memory=profile.compiled)
    code.seconds = profile.compiled
    return sorted([*alone, code], key=lambda one: -one.seconds)
