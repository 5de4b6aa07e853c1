"""Bad input at the doors of ``ed_lib.parallel``, for the table of :mod:`tests.test_doors`."""

from functools import partial

import torch
from torch import nn

from ed_lib.parallel import (
    asynchronous,
    checkpoint_checks,
    launch,
    ledger,
    links,
    pipeline,
    random_states,
    sampler,
    simulator,
    train,
    units,
    zero,
)
from ed_lib.parallel.asynchronous import SynchronousServer, simulate_workers
from ed_lib.parallel.schedules import bubble, gpipe, interleaved
from ed_lib.parallel.step_model import Layout, Model

TWO, THREE = torch.zeros(2), nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
TIED = nn.Sequential(THREE[0], nn.ReLU(), THREE[0])
SHARED = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
SHARED[1][0].weight = SHARED[0].weight
MIXED = nn.Sequential(nn.Linear(2, 2).double(), nn.Linear(2, 2))
SMALL = Model(8, 64, 4, 16, 100, 256, kv_heads=4)
LINK = links.Link(5e-5, 1e-9)

PLACE = sampler.Sampler(5).state_dict()
OLD = [{"layout": {}}]


def _states(ranks, **other):
    """Asks for the random states of so many ranks in the file of one."""
    file = {"random states": random_states.states()} | other
    return lambda: checkpoint_checks.check_random_states([file], ranks)


def _virtual(server=None, n_tasks=3, seconds=(1,), **options):
    return lambda: simulate_workers(
        server or asynchronous.ParameterServer(TWO, 0.1), None, n_tasks, seconds, **options
    )


def _used():
    server = asynchronous.ParameterServer(TWO, 0.1)
    server.push(TWO, 0)
    return asynchronous.Run(server, 3)


def _busy():
    run = asynchronous.Run(asynchronous.ParameterServer(TWO, 0.1), 3)
    run.assign(0, 0.0)
    run.assign(0, 0.0)


def _idle():
    asynchronous.Run(asynchronous.ParameterServer(TWO, 0.1), 3).receive(0, TWO, 0.0, 0.0)


def _local(workers=1, rounds=1, steps=1):
    return lambda: asynchronous.local_sgd(TWO, None, workers, rounds, steps, torch.optim.SGD)


def _clock(stages=3, microbatches=2, schedule=gpipe, **seconds):
    return lambda: simulator.simulate(schedule, stages, microbatches, seconds)


def _mesh(devices=1, tensor=1, pipe=1, batch=4, **options):
    return lambda: Layout(devices, tensor, pipe, batch, **options)


# fmt: off
PARALLEL = [
    ("launch without ranks", lambda: launch(len, 0), ValueError, "world_size is 0; wanted at least 1"),
    ("half a rank", lambda: launch(len, 1.5), TypeError, "world_size is 1.5; wanted a whole"),
    ("launch in no time", lambda: launch(len, 1, timeout=0), ValueError, "timeout is 0"),
    ("launch by post", lambda: launch(len, 1, backend="post"), ValueError, "backend is 'post'; wanted"),
    ("launch of a text", lambda: launch("who", 1), TypeError, "fn is 'who'; wanted a function"),
    ("launch of a lambda", lambda: launch(lambda: 1, 1), TypeError, "wanted a function at a module's top"),
    ("launch on a lambda", lambda: launch(len, 1, lambda: 1), TypeError, "arguments that pickle can send"),
    ("ranks: no batch", lambda: train.train(batch=0), ValueError, "batch is 0"),
    ("ranks: no steps", lambda: train.train(steps=0), ValueError, "steps is 0"),
    ("ranks: no rate", lambda: train.train(rate=-1), ValueError, "rate is -1"),
    ("one size of two", lambda: links.fit_link([8, 8], [1, 1]), ValueError, "sizes is [8.0, 8.0]; wanted at"),
    ("a size without its time", lambda: links.fit_link([8, 9], [1]), ValueError, "seconds has the shape"),
    ("a time below 0", lambda: links.fit_link([8, 9], [1, -1]), ValueError, "seconds is -1.0; wanted a finite"),
    ("a message in no time", lambda: links.fit_link([8, 9], [1, 0]), ValueError, "seconds is 0.0; wanted a"),
    ("a time that is none", lambda: links.fit_link([8, 9], [1, float("nan")]), ValueError, "seconds is nan"),
    ("a size below 0", lambda: links.fit_link([8, -9], [1, 2]), ValueError, "sizes is [8.0, -9.0]; wanted finite"),
    ("sizes in a table", lambda: links.fit_link([[8, 9]], [[1, 2]]), ValueError, "sizes has the shape (1, 2)"),
    ("a ledger's fourth stage", lambda: ledger.sent(1, 2, 4), ValueError, "stage is 4; wanted one of 0, 1, 2, 3"),
    ("no chunks", lambda: interleaved(0), ValueError, "chunks is 0; wanted at least 1"),
    ("half a chunk of a schedule", lambda: interleaved(1.5), TypeError, "chunks is 1.5; wanted a whole"),
    ("a bubble of no stages", lambda: bubble(0, 1), ValueError, "stages is 0; wanted at least 1"),
    ("a bubble of no work", lambda: bubble(1, 0), ValueError, "microbatches is 0; wanted at least 1"),
    ("more parts than layers", lambda: pipeline.cut(THREE, 4), ValueError, "parts is 4; wanted at most 3"),
    ("tied over parts", lambda: pipeline.cut(TIED, 2), ValueError, "a parameter in two of the parts"),
    ("no stages", _clock(stages=0), ValueError, "stages is 0"),
    ("a sideways time", _clock(sideways=1), ValueError, "seconds' op is 'sideways'"),
    ("a stage without its time", _clock(forward=[1, 1]), ValueError, "seconds['forward'] is [1, 1]"),
    ("chunks on one stage", _clock(1, 4, interleaved(2)), ValueError, "4, stages 1; wanted"),
    ("no groups of stages", _clock(3, 4, interleaved(2)), ValueError, "4, stages 3; wanted"),
    ("a matrix of parameters", lambda: asynchronous.ParameterServer(torch.eye(2), 1), ValueError, "params"),
    ("a server that stands", lambda: asynchronous.ParameterServer(TWO, 0), ValueError, "lr is 0"),
    ("a step of nothing", lambda: SynchronousServer(TWO, 0.1, 0), ValueError, "per_step is 0"),
    ("half a step of tasks", _virtual(SynchronousServer(TWO, 0.1, 2)), ValueError, "multiple of 2"),
    ("a worker in no time", _virtual(seconds=[0]), ValueError, "seconds is 0"),
    ("no workers", _virtual(seconds=[]), ValueError, "seconds is []; wanted a number for at least one"),
    ("a step's other task", lambda: SynchronousServer(TWO, 0.1, 2).push(TWO, 0, 5), ValueError,
     "task is 5; wanted one of this step's, from 0 to 1"),
    ("a busy worker", _busy, ValueError, "worker is 0, which holds task 0; wanted an idle one"),
    ("a gradient of nobody's", _idle, ValueError, "worker is 0, which holds no task; wanted"),
    ("local SGD by none", _local(workers=0), ValueError, "workers is 0; wanted at least 1"),
    ("local SGD without steps", _local(steps=0), ValueError, "steps is 0; wanted at least 1"),
    ("local SGD backwards", _local(rounds=-1), ValueError, "rounds is -1; wanted at least 0"),
    ("a buffer of no memory", lambda: units.check_memory({"mask": torch.ones(1).expand(3)}), ValueError,
     "mask is expanded; wanted one with all its numbers"),
    ("a sparse buffer", lambda: units.check_memory({"mask": torch.eye(2).to_sparse()}), ValueError,
     "mask has the layout torch.sparse_coo; wanted a dense one"),
    ("spread below 0", _virtual(spread=-1), ValueError, "spread is -1"),
    ("a used server", _used, ValueError, "server has made 1 updates; wanted a new one"),
    ("copies do not come out", _mesh(100, 8, 4), ValueError,
     "devices is 100; wanted a multiple of 32, tensor × context × pipeline"),
    ("a batch for one of two", _mesh(64, 8, 4, 3), ValueError, ["batch is 3", "wanted a multiple of 2"]),
    ("a mesh of nothing", _mesh(0), ValueError, "devices is 0"),
    ("half a chunk", _mesh(chunks=1.5), TypeError, "chunks is 1.5; wanted a whole number"),
    ("micro-batches of three", _mesh(micro=3), ValueError, "wanted a multiple of 3"),
    ("a fourth stage", _mesh(stage=4), ValueError, "stage is 4; wanted one of 0, 1, 2, 3"),
    ("chunks without groups", _mesh(4, 1, 4, 6, chunks=2), ValueError,
     "micro-batches is 6; wanted a multiple of 4, pipeline"),
    ("layers over three", lambda: Layout(3, 1, 3, 3).layers(SMALL), ValueError,
     "layers is 8; wanted a multiple of 3, pipeline × chunks, or two less"),
    ("heads over eight", lambda: Layout(8, 8).layers(SMALL), ValueError, "heads is 4; wanted"),
    ("tokens over three", lambda: Layout(3, context=3).layers(SMALL), ValueError, "tokens is 16; wanted"),
    ("another's unit", lambda: zero.units_of(THREE, [nn.Linear(2, 2)]), ValueError, "units has a Linear"),
    ("a unit in a unit", lambda: zero.units_of(THREE, [THREE, THREE[0]]), ValueError,
     "0.weight is 0.weight too"),
    ("a unit tied to what is outside", lambda: zero.units_of(SHARED, [SHARED[0]]), ValueError,
     "0.weight is 1.0.weight too"),
    ("a unit of two kinds", lambda: zero.units_of(MIXED, [MIXED]), ValueError,
     "the unit '' has parameters of"),
    ("a checkpoint of before", lambda: checkpoint_checks.check_random_states(OLD, 1), ValueError,
     "rank-0.pt has no random states; wanted them, or load() with new_draws=True"),
    ("one rank's states for two", _states(2), ValueError,
     "the random states are those of 1 ranks; wanted those of 2, or load() with new_draws=True"),
    ("states of less", _states(1, **{"random states": {"torch": 0}}), ValueError,
     ["rank-0.pt has random states of torch; wanted", "numpy", "new_draws=True"]),
    ("a place without a sampler", lambda: checkpoint_checks.check_place([{"place in the data": PLACE}], None),
     ValueError, "it has a place in the data; wanted a sampler that goes there"),
    ("a sampler without a place", lambda: checkpoint_checks.check_place(OLD, sampler.Sampler(5)), ValueError,
     "it has no place in the data; wanted one, for the sampler"),
    ("a place in other data", lambda: checkpoint_checks.check_place(
        [{"place in the data": PLACE}], sampler.Sampler(6)), ValueError,
     "the place in the data is one in 5 samples; wanted one in 6"),
    ("a sampler of nothing", lambda: sampler.Sampler(0), ValueError, "length is 0; wanted at least 1"),
    ("a sampler's seed", lambda: sampler.Sampler(3, -1), ValueError, "seed is -1; wanted at least 0"),
    ("no batch from a sampler", lambda: sampler.Sampler(3).take(0), ValueError, "batch is 0; wanted"),
    ("a place that is none", lambda: sampler.Sampler(3).load_state_dict({"epoch": 1}), ValueError,
     "the place in the data is {'epoch': 1}; wanted length, seed, epoch, taken"),
    ("a place in more", lambda: sampler.Sampler(3).load_state_dict(PLACE), ValueError,
     "the place in the data is one in 5 samples; wanted one in 3"),
    ("ZeRO's fourth stage", lambda: zero.shard(THREE, partial(torch.optim.SGD), 4), ValueError,
     "stage is 4; wanted one of 0, 1, 2, 3"),
]
