"""Many devices: a data-parallel step, pipelines, and workers that do not wait.

The devices are processes on a CPU, with one thread each, whatever else the machine has: a GPU alone is one
device, and NCCL refuses two ranks on it. Gradients and weights are first compared with float64; what deviates
is not timed. The long training runs are another benchmark, ``parallel_accuracy``.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from benchmarks import data_parallel, ed_pipeline, pipelines
from benchmarks.harness import one_thread, summary
from ed_lib.parallel.asynchronous import workers
from ed_lib.parallel.asynchronous.problems import Perceptron
from ed_lib.parallel.asynchronous.servers import ParameterServer, SynchronousServer

SPEEDS = {"even": (1, 1, 1, 1), "one slow by 5×": (1, 1, 1, 5)}  # time of a gradient, for each worker


@dataclass(frozen=True)
class Size:
    """``gradients`` of the workers that do not wait; a worker sleeps ``pause`` seconds for each."""

    step: data_parallel.Size = data_parallel.Size()
    pipeline: pipelines.Size = pipelines.Size()
    ed: ed_pipeline.Size = ed_pipeline.Size()
    gradients: int = 240
    pause: float = 0.02


SIZE, TINY = Size(), Size(data_parallel.TINY, pipelines.TINY, ed_pipeline.TINY, 16, 0.001)


def throughput(size, device):
    """Seconds for a gradient, of four processes, one row for each server and speed of the workers.

    A worker sleeps (the slow one five times as long), in place of a device that computes, and then computes
    the gradient of a small network. The floor is what the sleeping alone takes. Results: for each of the four
    workers its gradients, and their mean staleness; and how often each staleness was.
    """
    random = np.random.default_rng(0)
    problem = Perceptron(random.random((512, 784), dtype=np.float32), random.integers(10, size=512))
    for name in ("synchronous", "asynchronous"):
        for speeds, relative in SPEEDS.items():
            pauses = [size.pause * times for times in relative]
            start = problem.start()
            if name == "synchronous":
                server, floor = SynchronousServer(start, 0.05, len(pauses)), max(pauses) / len(pauses)
            else:
                server, floor = ParameterServer(start, 0.05), 1 / sum(1 / pause for pause in pauses)
            run = workers.train(server, problem, size.gradients, len(pauses), pause=pauses, timeout=300.0)
            case = {"server": name, "workers": speeds, "pause": size.pause}
            yield case | per_gradient(run) | {"floor": floor} | staleness_of(server, len(pauses))


def per_gradient(run, block=16):
    """Seconds for each gradient, in blocks of as many as four workers, one slow by 5×, bring in its time."""
    ends = [0.0, *(span.end for span in run.spans)][::block]
    return summary(np.diff(ends) / block)


def staleness_of(server, n_workers):
    """Gradients of each worker, how stale they were on average, and how often each staleness was."""
    of = [[push.staleness for push in server.log if push.worker == worker] for worker in range(n_workers)]
    counts = Counter(push.staleness for push in server.log)
    return {
        "gradients": [len(some) for some in of],
        "mean_staleness": [float(np.mean(some)) if some else 0.0 for some in of],
        "histogram": [counts[staleness] for staleness in range(max(counts) + 1)],
    }


context = one_thread
TABLES = {
    "data parallel step": lambda size, device: data_parallel.step(size.step),
    "pipeline": lambda size, device: pipelines.batch(size.pipeline),
    "ED pipeline": lambda size, device: ed_pipeline.quick(size.ed),
    "asynchronous, throughput": throughput,
}
