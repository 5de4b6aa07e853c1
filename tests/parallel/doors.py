"""Bad input at the doors of ``ed_lib.parallel``, for the table of :mod:`tests.test_doors`."""

import torch

from ed_lib.parallel import launch
from ed_lib.parallel.asynchronous import servers, workers


def _work(gradient=abs, n_tasks=4, n_workers=2, **options):
    return lambda: workers.train(
        servers.ParameterServer(torch.zeros(4), 1.0), gradient, n_tasks, n_workers, **options
    )


PARALLEL = [
    ("launch without ranks", lambda: launch(len, 0), ValueError, "world_size is 0; wanted at least 1"),
    ("launch of half a rank", lambda: launch(len, 1.5), TypeError, "world_size is 1.5; wanted a whole"),
    ("launch in no time", lambda: launch(len, 1, timeout=0), ValueError, "timeout is 0"),
    ("launch by smoke", lambda: launch(len, 1, backend="smoke"), ValueError, "backend is 'smoke'; wanted"),
    ("launch of a text", lambda: launch("who", 1), TypeError, "fn is 'who'; wanted a function"),
    ("launch of a lambda", lambda: launch(lambda: 1, 1), TypeError, "wanted a function at a module's top"),
    ("launch on a lambda", lambda: launch(len, 1, lambda: 1), TypeError, "arguments that pickle can send"),
    ("no workers", _work(n_workers=0), ValueError, "n_workers is 0"),
    ("workers without tasks", _work(n_tasks=0), ValueError, "n_tasks is 0"),
    ("workers in less than no time", _work(timeout=-1), ValueError, "timeout is -1"),
    ("a pause for one of two", _work(pause=[0.1]), ValueError, "pause is [0.1]; wanted 2 numbers"),
    ("a lambda for workers", _work(lambda params, task: 0), TypeError, "wanted a function at a module's top"),
]  # fmt: skip
