"""Going on from a checkpoint as if there had been no break: random states, and the place in the
data; and ranks that draw different numbers.
"""

import hashlib
import io
import json
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from ed_lib.parallel import checkpoints, launch
from ed_lib.parallel.replica import Replica, local_rows
from ed_lib.parallel.sampler import Sampler
from ed_lib.parallel.zero import shard

STAGES = (0, 1, 2, 3)
SAMPLES = 20
BATCH = 6


class Noisy(nn.Sequential):
    """Draws from PyTorch's, NumPy's and Python's generators as it computes."""

    def forward(self, x):
        noise = np.random.standard_normal(x.shape[-1]) + random.random()  # noqa: NPY002
        return super().forward(x + 0.1 * torch.from_numpy(noise).to(x.dtype))


def noisy(stage):
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    module = Noisy(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2))
    adam = partial(torch.optim.Adam, lr=0.05)
    return shard(module, adam, stage, [module[0], module[3]])


def go(sharded, sampler, steps):
    """So many steps → all weights, whole, and the numbers of the samples that were taken."""
    data = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(3))
    taken = []
    for _ in range(steps):
        numbers = sampler.take(BATCH)
        taken.append(numbers)
        sharded(data[local_rows(numbers)]).square().sum().backward()
        sharded.step(BATCH)
    for unit in sharded.units:
        sharded.gather(unit)
    weights = nn.utils.parameters_to_vector(sharded.module.parameters()).detach().clone()
    return weights, torch.cat(taken)


def without_a_break(folder):
    """{stage: what six steps come to}, saved on the way at the third."""
    found = {}
    for stage in STAGES:
        sharded = noisy(stage)
        sampler = Sampler(SAMPLES)
        go(sharded, sampler, 3)
        checkpoints.save(sharded, f"{folder}/{stage}", 3, sampler)
        found[stage] = go(sharded, sampler, 3)
    return found


def after_a_break(folder, new_draws):
    """{stage: what the last three of six steps come to}, in new processes."""
    found = {}
    for stage in STAGES:
        sharded = noisy(stage)
        sampler = Sampler(SAMPLES, seed=5)
        place = Path(folder) / str(stage) / "step-3"
        assert checkpoints.load(sharded, place, sampler, new_draws=new_draws) == 3
        found[stage] = go(sharded, sampler, 3)
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """→ a folder of two ranks' checkpoints, and what each of the ranks came to."""
    folder = tmp_path_factory.mktemp("resuming")
    return folder, launch(without_a_break, 2, str(folder), timeout=240.0)


def test_a_run_that_goes_on_is_the_run_without_a_break_to_the_bit(saved):
    folder, right = saved
    resumed = launch(after_a_break, 2, str(folder), False, timeout=240.0)
    for rank in (0, 1):
        for stage in STAGES:
            weights, taken = resumed[rank][stage]
            wanted, wanted_numbers = right[rank][stage]
            assert torch.equal(taken, wanted_numbers), "the same samples"
            assert torch.equal(weights, wanted), (stage, rank)
    assert torch.equal(right[0][0][0], right[0][3][0]), "all stages draw alike"


def test_without_the_random_states_it_is_another_run(saved):
    """Which shows that the test above sees them; any number of ranks goes on like that."""
    folder, right = saved
    for ranks in (1, 2, 3):
        for found in launch(after_a_break, ranks, str(folder), True, timeout=240.0):
            weights, taken = found[2]
            wanted, wanted_numbers = right[0][2]
            assert torch.equal(taken, wanted_numbers) and not torch.equal(weights, wanted)


def rewritten(place, change):
    """A checkpoint's copy whose files were changed, with the hashes that they have now."""
    target = place.with_name("step-9")
    target.mkdir()
    hashes = []
    for rank in range(2):
        file = torch.load(place / f"rank-{rank}.pt", weights_only=True)
        file["layout"]["the file"] = f"rank {rank} of 2 in {target.name}"
        change(file)
        buffer = io.BytesIO()
        torch.save(file, buffer)
        (target / f"rank-{rank}.pt").write_bytes(buffer.getvalue())
        hashes.append(hashlib.sha256(buffer.getvalue()).hexdigest())
    (target / checkpoints.MANIFEST).write_text(json.dumps(hashes))
    return target


def older(file):
    """Into what save() wrote before it knew of random states."""
    del file["random states"], file["place in the data"]


def of_a_gpu(file):
    file["random states"]["cuda"] = file["random states"]["torch"]


def told(place, sampler=None, **options):
    """What load() says, and whether nothing has changed."""
    sharded = noisy(2)
    before = [unit.kept.clone() for unit in sharded.units]
    drawn = torch.get_rng_state()
    with pytest.raises(checkpoints.CheckpointError) as caught:
        checkpoints.load(sharded, place, sampler, **options)
    kept = [torch.equal(a, unit.kept) for a, unit in zip(before, sharded.units, strict=True)]
    unmoved = sampler is None or (sampler.epoch, sampler.taken) == (0, 0)
    return str(caught.value), all(kept) and unmoved and torch.equal(drawn, torch.get_rng_state())


def what_is_missing(place, old, cuda):
    """{what is wrong: (what is said, whether nothing has changed)}."""
    place, old, cuda = Path(place), Path(old), Path(cuda)
    found = {}
    if dist.get_world_size() == 2:
        found["another sampler"] = told(place, Sampler(19))
        found["no sampler"] = told(place)
        found["old"] = told(old)
        found["old, a sampler"] = told(old, Sampler(SAMPLES), new_draws=True)
        found["of a GPU"] = told(cuda, Sampler(SAMPLES))
        if dist.get_rank() == 1:
            found["on one rank"] = told(place, Sampler(19))
        else:
            found["on one rank"] = told(place, Sampler(SAMPLES))
        # what an older version wrote can still be read
        assert checkpoints.load(noisy(2), old, new_draws=True) == 9
    else:
        found["three ranks"] = told(place, Sampler(SAMPLES))
        # and so can other ranks' checkpoints
        assert checkpoints.load(noisy(1), place, Sampler(SAMPLES), new_draws=True) == 3
    return found


MISSING = {
    "another sampler": "the place in the data is one in 20 samples; wanted one in 19",
    "on one rank": "the place in the data is one in 20 samples; wanted one in 19",
    "no sampler": "it has a place in the data; wanted a sampler that goes there",
    "old": "rank-0.pt has no random states; wanted them, or load() with new_draws=True",
    "old, a sampler": "it has no place in the data; wanted one, for the sampler",
    "of a GPU": "rank-0.pt has random states of cuda, numpy, python, torch; wanted numpy, python, "
    "torch, or load() with new_draws=True",
    "three ranks": "the random states are those of 2 ranks; wanted those of 3, or load() with "
    "new_draws=True",
}


def test_what_is_missing_is_said_in_a_line_and_nothing_is_loaded(saved):
    folder, _ = saved
    place = folder / "2" / "step-3"
    old = rewritten(place, older)
    cuda = rewritten(folder / "1" / "step-3", of_a_gpu)
    seen = set()
    for ranks in (2, 3):
        for found in launch(what_is_missing, ranks, *map(str, (place, old, cuda)), timeout=240.0):
            seen |= found.keys()
            for how, (message, unchanged) in found.items():
                assert MISSING[how] in message and unchanged, (how, message)
                assert "\n" not in message
    assert seen == MISSING.keys()


def samplers_at_two_places(folder):
    sampler = Sampler(SAMPLES)
    sampler.take(1 + dist.get_rank())
    with pytest.raises(ValueError, match="the ranks call different things; .*'taken': 2"):
        checkpoints.save(noisy(0), folder, 1, sampler)
    return list(Path(folder).iterdir())


def test_ranks_at_two_places_in_the_data_save_nothing(tmp_path):
    assert launch(samplers_at_two_places, 2, str(tmp_path)) == [[], []]


def draws(_):
    """What a rank draws of each generator, after each door, with and without equal_draws."""
    found = {}
    for name, door in {
        "shard": partial(shard, optimizer=torch.optim.SGD),
        "Replica": Replica,
    }.items():
        for equal in (False, True):
            torch.manual_seed(1)
            np.random.seed(1)  # noqa: NPY002
            random.seed(1)
            module = nn.Linear(3, 2)
            door(module, equal_draws=equal)
            mask = nn.functional.dropout(torch.ones(50)).tolist()
            found[name, equal] = mask, np.random.random(), random.random()  # noqa: NPY002
    with pytest.raises(ValueError, match="the ranks call different things; .*equal_draws=True"):
        Replica(nn.Linear(1, 1), equal_draws=bool(dist.get_rank()))
    return found


def test_ranks_draw_different_numbers_unless_asked_not_to():
    ranks = launch(draws, 3, None)
    (alone,) = launch(draws_alone, 1, None)
    for name in ("shard", "Replica"):
        for generator in range(3):
            apart = [repr(rank[name, False][generator]) for rank in ranks]
            equal = [repr(rank[name, True][generator]) for rank in ranks]
            assert len(set(apart)) == 3 and len(set(equal)) == 1
            assert apart[0] == equal[0] == repr(alone[generator]), "rank 0 goes on as it was"


def draws_alone(_):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    nn.Linear(3, 2)
    mask = nn.functional.dropout(torch.ones(50)).tolist()
    return mask, np.random.random(), random.random()  # noqa: NPY002


def test_a_sampler_takes_each_sample_once_an_epoch_and_goes_on_anywhere():
    for length, batch in ((20, 6), (5, 7), (1, 3), (8, 8)):
        whole = Sampler(length, seed=2)
        numbers = whole.take(length * batch)
        for epoch in numbers.split(length):
            assert sorted(epoch.tolist()) == list(range(length))
        again = Sampler(length, seed=2)
        parts = []
        for _ in range(length):
            # a new sampler at each batch, of another seed, brought to the place
            moved = Sampler(length, seed=9)
            moved.load_state_dict(again.state_dict())
            parts.append(moved.take(batch))
            again = moved
        assert torch.equal(torch.cat(parts), numbers), (length, batch)
        assert again.state_dict() == whole.state_dict()
    first, second = Sampler(50).take(100).split(50)
    assert not torch.equal(first, second), "an epoch has an order of its own"
    assert not torch.equal(Sampler(50, 1).take(50), first), "and a seed"
