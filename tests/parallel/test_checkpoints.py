"""Sharded states on disk: saved, loaded by other numbers of ranks, spoilt, and killed while being written."""

import hashlib
import json
import random
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ed_lib.models import GPT
from ed_lib.parallel import checkpoints, launch, launcher
from ed_lib.parallel.zero import shard
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
            file, manifest = place / "rank-1.pt", place / checkpoints.MANIFEST
            content, entries = file.read_bytes(), json.loads(manifest.read_text())["files"]
            if how == "cut short":
                file.write_bytes(content[:-10])
            elif how == "altered":
                file.write_bytes(content[:-10] + b"x" + content[-9:])
            elif how == "missing":
                file.unlink()
            elif how == "no manifest":
                manifest.write_text("")
            elif how == "a part dropped":
                manifest.write_text(json.dumps({"files": entries[:1]}))
            elif how == "parts reversed":
                (place / "rank-0.pt").rename(place / "other")
                file.rename(place / "rank-0.pt")
                (place / "other").rename(file)
                manifest.write_text(json.dumps({"files": entries[::-1]}))
            elif how == "of another step":
                old = Path(folder, "step-5")
                for path in old.iterdir():
                    (place / path.name).write_bytes(path.read_bytes())
            elif how == "foreign":
                torch.save([1, 2], file)
                content = file.read_bytes()
                entries[1] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                manifest.write_text(json.dumps({"files": entries}))
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
    "another model": "blocks.2.norm1.weight is (8,) of torch.float64, number 0 of the unit 'blocks.2'; "
    "the model's is nothing",
    "another dtype": "tokens.weight is (11, 8) of torch.float64, number 0 of the unit 'the rest'; the model"
    "'s is (11, 8) of torch.float32, number 0",
    "another optimizer": "the optimizer is Adam of [['the rest', 'blocks.0', 'blocks.1', 'blocks.2']]; the "
    "model's is SGD of [['the rest'",
    "no manifest": "step-6: Expecting value",
    "a part dropped": "rank-0.pt is of rank 0 of 2 in step 7; wanted rank 0 of 1",
    "parts reversed": "rank-0.pt is of rank 1 of 2 in step 8; wanted rank 0 of 2",
    "of another step": "rank-0.pt is of rank 0 of 2 in step 5; wanted rank 0 of 2",
    "foreign": "step-10: ",
}


def test_a_spoilt_checkpoint_is_an_error_on_all_ranks_and_changes_nothing(tmp_path):
    for found, twice in launch(spoil, 2, str(tmp_path), timeout=240.0):
        for how, message in SPOILT.items():
            told, unchanged = found[how]
            assert message in told and unchanged, (how, told)
        assert twice.startswith("step is 0, of which ") and "has a checkpoint; wanted another" in twice


class Mixed(nn.Module):
    """Trained and frozen layers, and running means; ``swapped``: two layers in the other order."""

    def __init__(self, swapped=False, shape=(3, 3)):
        super().__init__()
        torch.manual_seed(0)
        names = ("b", "a") if swapped else ("a", "b")
        for name in names:
            setattr(self, name, nn.Linear(*shape, bias=False).double())
        self.frozen, self.norm = nn.Linear(3, 3).double().requires_grad_(False), nn.BatchNorm1d(3).double()

    def forward(self, x):
        return self.norm(self.b(self.frozen(self.a(x)))).square().sum()


def mixed(rate=0.1, amsgrad=True, **options):
    module = Mixed(**options)
    adam = partial(torch.optim.Adam, lr=rate, amsgrad=amsgrad)
    return shard(module, adam, 3, [module.norm])


def go(sharded, steps):
    """Every number of a module, whole, after so many steps; inputs differ by rank."""
    for n in range(steps):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(7 * n + dist.get_rank())).double()
        sharded(x).backward()
        sharded.step(4 * dist.get_world_size())
    weights(sharded)
    return {name: t.clone() for name, t in sharded.module.state_dict().items()}


def the_whole_of_it(folder):
    """→ what a module and its optimizer are with and without a stop; what others are told."""
    first = mixed(rate=0.1)
    with torch.no_grad():
        first.module.frozen.weight += 1
    go(first, 2)
    first.optimizer.param_groups[0]["lr"] = 0.02  # as a scheduler does
    place = checkpoints.save(first, folder, 2)
    other = mixed(rate=0.5, amsgrad=False)
    checkpoints.load(other, place)
    ends, told = [(go(sharded, 3), sharded.optimizer.param_groups[0]["lr"]) for sharded in (first, other)], []
    for options in ({"swapped": True}, {"shape": (1, 9)}):
        with pytest.raises(checkpoints.CheckpointError) as caught:
            checkpoints.load(mixed(**options), place)
        told.append(str(caught.value))
    return ends, told


def test_all_is_restored_and_another_model_refused(tmp_path):
    for (without, with_stop), (swapped, reshaped) in launch(the_whole_of_it, 2, str(tmp_path)):
        assert without[1] == with_stop[1] == 0.02, "the learning rate"
        for name, right in without[0].items():
            assert torch.equal(with_stop[0][name], right), name
        assert (without[0]["frozen.weight"] > 0.3).all() and without[0]["norm.num_batches_tracked"] == 5
        place = "of torch.float64, number {} of the unit 'the rest'"
        assert f"a.weight is (3, 3) {place.format(0)}; the model's is (3, 3) {place.format(1)}" in swapped
        assert f"a.weight is (3, 3) {place.format(0)}; the model's is (9, 1) {place.format(0)}" in reshaped


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
    """→ the step of the last checkpoint, what its weights are, and whether a step from it can be taken."""
    sharded = made(1)
    step = checkpoints.load(sharded, checkpoints.whole(folder)[-1])
    values = [unit.weights.unique().tolist() for unit in sharded.units]
    x, wanted = batches()[1]
    summed(sharded(x), wanted).backward()
    sharded.step(1)
    return step, values, bool(torch.isfinite(weights(sharded)).all())


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
        for p in (3, 1) if times == 1 else [1 + last % 3]:
            for step, values, goes_on in launch(load_last, p, str(tmp_path)):
                assert step == last and values == len(values) * [[float(step)]], "whole, and of one step"
                assert goes_on
        seen.append(bool(list(tmp_path.glob(f"*{checkpoints.UNFINISHED}"))))
        first = last + 1
    return seen


def test_a_crash_loses_nothing(tmp_path):
    crash(tmp_path, 1)


@pytest.mark.slow
def test_twenty_crashes_lose_nothing(tmp_path):
    seen = crash(tmp_path, 20)
    assert any(seen), "some of them while a checkpoint was being written"
