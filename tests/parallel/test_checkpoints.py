"""Sharded states on disk: saved, loaded by other numbers of ranks, spoilt, and killed while being written."""

import random
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

from ed_lib.models import GPT
from ed_lib.parallel import launch
from ed_lib.parallel.ranks import launcher
from ed_lib.parallel.sharded import checkpoints
from ed_lib.parallel.sharded.zero import shard
from tests.parallel.test_sharded import ADAM, batches, net, summed, train, weights

STAGES = (0, 1, 2, 3)


def steps(sharded):
    return train(sharded).clone()


def made(stage, optimizer=ADAM):
    module = net()
    return shard(module, optimizer, stage, list(module.blocks))


def save_and_go_on(folder):
    """{stage: weights after saving, and after three more steps}."""
    found = {}
    for stage in STAGES:
        sharded = made(stage)
        middle = steps(sharded)
        checkpoints.save(sharded, f"{folder}/{stage}", 3)
        found[stage] = middle, steps(sharded)
    return found


def go_on(folder):
    """{(stage that saved, stage that loads): weights when loaded, and after three more steps}.

    All pairs for two ranks, as many as saved; for others each stage saved once, and loads once.
    """
    found, p = {}, dist.get_world_size()
    for saved in STAGES:
        for stage in STAGES if p == 2 else [(saved + p) % len(STAGES)]:
            sharded = made(stage)
            assert checkpoints.load(sharded, checkpoints.whole(f"{folder}/{saved}")[-1]) == 3
            found[saved, stage] = weights(sharded).clone(), steps(sharded)
    return found


def test_any_number_of_ranks_goes_on_where_others_stopped(tmp_path):
    wanted = launch(save_and_go_on, 2, str(tmp_path))[0][0]
    for p in (1, 2, 3):
        for rank in launch(go_on, p, str(tmp_path), timeout=240.0):
            for (saved, stage), (loaded, end) in rank.items():
                assert torch.equal(loaded, wanted[0]), (p, saved, stage)
                if p == 2:
                    assert torch.equal(end, wanted[1]), "the same bits as without a stop"
                torch.testing.assert_close(end, wanted[1], rtol=0, atol=1e-9)


def spoil(folder):
    """{how: (what a rank is told, whether its weights are as before)} of what was spoilt after both saved."""
    found, sharded = {}, made(3)
    steps(sharded)
    for step, how in enumerate(SPOILT):
        place = checkpoints.save(sharded, folder, step, 99)
        if dist.get_rank() == 0:
            file = place / "rank-1.pt"
            content = file.read_bytes()
            if how == "cut short":
                file.write_bytes(content[:-10])
            elif how == "altered":
                file.write_bytes(content[:-10] + b"x" + content[-9:])
            elif how == "missing":
                file.unlink()
            elif how == "no manifest":
                (place / checkpoints.MANIFEST).write_text("")
        dist.barrier()
        others = {"another model": GPT(11, 5, 8, 2, 2).double(), "another dtype": net().float()}
        module = others.get(how, net())
        optimizer = partial(torch.optim.SGD, lr=0.1) if how == "another optimizer" else ADAM
        other = shard(module, optimizer, 3, list(module.blocks))
        before = weights(other).clone()
        with pytest.raises(checkpoints.CheckpointError) as caught:
            checkpoints.load(other, place)
        found[how] = str(caught.value), torch.equal(before, weights(other))
    with pytest.raises(ValueError) as caught:
        checkpoints.save(sharded, folder, 0)
    return found, str(caught.value)


SPOILT = {
    "cut short": "rank-1.pt has",
    "altered": "rank-1.pt was altered: SHA-256 ",
    "missing": "rank-1.pt",
    "another model": "the unit 'blocks.2' has 872 of torch.float64 by Adam; the model's has no such",
    "another dtype": "has 144 of torch.float64 by Adam; the model's has 144 of torch.float32",
    "another optimizer": "of torch.float64 by Adam; the model's has 144 of torch.float64 by SGD",
    "no manifest": "step-6: Expecting value",
}


def test_a_spoilt_checkpoint_is_an_error_on_all_ranks_and_changes_nothing(tmp_path):
    for found, twice in launch(spoil, 2, str(tmp_path), timeout=240.0):
        for how, message in SPOILT.items():
            told, unchanged = found[how]
            assert message in told and unchanged, how
        assert twice.startswith("step is 0, of which ") and "has a checkpoint; wanted another" in twice


def save_some(folder):
    sharded = made(2)
    steps(sharded)
    for step, keep in ((1, 9), (2, 9), (3, 2), (4, 1)):
        checkpoints.save(sharded, folder, step, keep)
        kept = [f"step-{n}" for n in range(max(1, step + 1 - keep), step + 1)]
        assert [path.name for path in checkpoints.whole(folder)] == kept


def test_as_many_are_kept_as_was_said(tmp_path):
    launch(save_some, 2, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["step-4"]


def save_often(folder, first):
    """Saves a state that tells its step, until it is killed."""
    sharded = made(3)
    x, wanted = batches()[0]
    summed(sharded(x), wanted).backward()
    sharded.step(1)  # the optimizer has a state
    for step in range(first, first + 10_000):
        for unit in sharded.units:
            unit.kept.fill_(step)
        checkpoints.save(sharded, folder, step)


def load_last(folder):
    sharded = made(3)
    step = checkpoints.load(sharded, checkpoints.whole(folder)[-1])
    return step, [unit.kept.unique().tolist() for unit in sharded.units]


def killed_while_saving(folder, first, seconds):
    """Two ranks that save, killed so long after the first checkpoint that they write."""
    call = {"args": (save_often, 2, str(folder), first), "kwargs": {"timeout": 120.0}}
    saver = launcher.CONTEXT.Process(target=launch, **call)
    saver.start()
    until = time.monotonic() + 60
    while not any(int(path.name[5:]) >= first for path in checkpoints.whole(folder)):
        assert time.monotonic() < until, "it does not save"
        time.sleep(0.01)
    time.sleep(seconds)
    saver.kill()
    saver.join()


def crash(tmp_path, times):
    draw, first, seen = random.Random(0), 1, []
    for _ in range(times):
        killed_while_saving(tmp_path, first, draw.uniform(0, 0.3))
        last = int(checkpoints.whole(tmp_path)[-1].name[5:])
        for step, values in launch(load_last, 2, str(tmp_path)):
            assert step == last and values == len(values) * [[float(step)]], "whole, and of one step"
        seen.append(bool(list(tmp_path.glob(f"*{checkpoints.UNFINISHED}"))))
        first = last + 1
    return seen


def test_a_crash_loses_nothing(tmp_path):
    crash(tmp_path, 1)


@pytest.mark.slow
def test_twenty_crashes_lose_nothing(tmp_path):
    seen = crash(tmp_path, 20)
    assert any(seen), "some of them while a checkpoint was being written"
