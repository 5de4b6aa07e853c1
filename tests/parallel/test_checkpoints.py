"""Sharded states on disk: saved, loaded by other numbers of ranks, spoilt, and killed while being
written.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import stat
import threading
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ed_lib.parallel import RankError, checkpoints, launch
from ed_lib.parallel.replica import local_rows
from ed_lib.parallel.zero import shard

STAGES = (0, 1, 2, 3)


class Mixed(nn.Module):
    """Trained and frozen layers, and running means; ``swapped``: two layers in the other order."""

    def __init__(self, swapped=False, shape=(3, 3), layers=("a", "b")):
        super().__init__()
        torch.manual_seed(0)
        for name in layers[::-1] if swapped else layers:
            setattr(self, name, nn.Linear(*shape, bias=False).double())
        self.frozen, self.norm = (
            nn.Linear(3, 3).double().requires_grad_(False),
            nn.BatchNorm1d(3).double(),
        )

    def forward(self, x):
        return self.norm(self.b(self.frozen(self.a(x)))).square().sum()


def mixed(stage=3, rate=0.1, amsgrad=True, **options):
    module = Mixed(**options)
    return shard(module, partial(torch.optim.Adam, lr=rate, amsgrad=amsgrad), stage, [module.norm])


def numbers(sharded):
    """Every number of a module, whole."""
    for unit in sharded.units:
        sharded.gather(unit)
    return {name: t.clone() for name, t in sharded.module.state_dict().items()}


def go(sharded, steps):
    """The same after so many steps; inputs differ by rank."""
    for n in range(steps):
        x = torch.randn(
            4, 3, generator=torch.Generator().manual_seed(7 * n + dist.get_rank())
        ).double()
        sharded(x).backward()
        sharded.step(4 * dist.get_world_size())
    return numbers(sharded)


def save_and_go_on(folder):
    """{stage: numbers after saving, after three more steps, and the rate then}."""
    found = {}
    for stage in STAGES:
        sharded = mixed(stage)
        sharded.module.frozen.weight += 1
        go(sharded, 2)
        sharded.optimizer.param_groups[0]["lr"] = 0.02  # as a scheduler does
        checkpoints.save(sharded, f"{folder}/{stage}", 2)
        found[stage] = numbers(sharded), go(sharded, 3), sharded.optimizer.param_groups[0]["lr"]
    return found


def go_on(folder):
    """{(stage that saved, stage that loads): the same, from another beginning}; each loads
    twice.
    """
    found = {}
    for saved in STAGES:
        for stage in (saved, (saved + 1 + dist.get_world_size()) % 4):
            sharded = mixed(stage, rate=0.5, amsgrad=False)
            place = checkpoints.whole(f"{folder}/{saved}")[-1]
            other_ranks = dist.get_world_size() != 2
            assert checkpoints.load(sharded, place, new_draws=other_ranks) == 2
            found[saved, stage] = (
                numbers(sharded),
                go(sharded, 3),
                sharded.optimizer.param_groups[0]["lr"],
            )
    return found


SPOILT = {
    "cut short": "rank-1.pt is not as it was written, ",
    "altered": "rank-1.pt is not as it was written, ",
    "missing": "rank-1.pt",
    "an empty list": "manifest.json is []; wanted a list of one SHA-256 or more",
    "an empty dict": "manifest.json is {}; wanted a list of one SHA-256 or more",
    "an empty text": "manifest.json is ''; wanted a list of one SHA-256 or more",
    "no hash": "manifest.json has 5; wanted a list of one SHA-256 or more",
    "no manifest": "step-7: Expecting value",
    "foreign": "rank-1.pt holds something else; wanted what save() writes",
    "another model": "b.weight is (3, 3) of torch.float64, number 1 of the unit 'the rest'; wanted nothing",
    "another order": "a.weight is (3, 3) of torch.float64, number 0 of the unit 'the rest'; wanted "
    "(3, 3) of torch.float64, number 1 of",
    "another shape": "number 0 of the unit 'the rest'; wanted (9, 1) of torch.float64, number 0 of",
    "another dtype": "number 0 of the unit 'the rest'; wanted (3, 3) of torch.float32, number 0 of",
    "another optimizer": "the optimizer is Adam of [['the rest', 'norm']]; wanted SGD of [[",
    "of another step": "the file is rank 0 of 2 in step-13; wanted rank 0 of 2 in step-14",
    "a part dropped": "the file is rank 0 of 2 in step-15; wanted rank 0 of 1",
    "parts reversed": "the file is rank 1 of 2 in step-16; wanted rank 0 of 2",
    "with code": "Weights only load failed",
}
OTHERS = {
    "another model": lambda: mixed(layers=("a", "c")),
    "another order": lambda: mixed(swapped=True),
    "another shape": lambda: mixed(shape=(1, 9)),
    "another dtype": lambda: shard(module := Mixed().float(), torch.optim.Adam, 3, [module.norm]),
    "another optimizer": lambda: shard(module := Mixed(), torch.optim.SGD, 3, [module.norm]),
}


MANIFESTS = {
    "an empty list": "[]",
    "an empty dict": "{}",
    "an empty text": '""',
    "no hash": "[5, 6]",
}


def spoil_files(how, place):
    """What rank 0 does to a checkpoint of two, of which the one before is beside it."""
    files, manifest = [place / f"rank-{rank}.pt" for rank in (0, 1)], place / checkpoints.MANIFEST
    parts, hashes = [file.read_bytes() for file in files], json.loads(manifest.read_text())
    if how == "cut short":
        files[1].write_bytes(parts[1][:-10])
    elif how == "altered":
        files[1].write_bytes(parts[1][:-10] + b"x" + parts[1][-9:])
    elif how == "missing":
        files[1].unlink()
    elif how in MANIFESTS:
        manifest.write_text(MANIFESTS[how])
    elif how == "no manifest":
        manifest.write_text("")
    elif how in ("foreign", "with code"):
        torch.save([1, 2] if how == "foreign" else {"layout": Path}, files[1])
        manifest.write_text(
            json.dumps([hashes[0], hashlib.sha256(files[1].read_bytes()).hexdigest()])
        )
    elif how == "of another step":
        shutil.rmtree(place)
        shutil.copytree(place.with_name("step-13"), place)
    elif how == "a part dropped":
        manifest.write_text(json.dumps(hashes[:1]))
    elif how == "parts reversed":
        for file, part in zip(files, parts[::-1], strict=True):
            file.write_bytes(part)
        manifest.write_text(json.dumps(hashes[::-1]))


def spoil(folder):
    """{how: (what a rank is told, whether its numbers are as before)} of what was spoilt after both
    saved.
    """
    found, sharded = {}, mixed()
    go(sharded, 1)
    for step, how in enumerate(SPOILT):
        place = checkpoints.save(sharded, folder, step)
        if dist.get_rank() == 0:
            spoil_files(how, place)
        dist.barrier()
        other = OTHERS.get(how, mixed)()
        before = numbers(other)
        with pytest.raises(checkpoints.CheckpointError) as caught:
            checkpoints.load(other, place)
        after = numbers(other)
        found[how] = (
            str(caught.value),
            all(torch.equal(before[name], after[name]) for name in before),
        )
    with pytest.raises(ValueError, match="the ranks call different things.*load.step-13."):
        checkpoints.load(mixed(), place.with_name(f"step-{9 + 4 * dist.get_rank()}"))
    with pytest.raises(ValueError, match="step is 9, of which .* has a checkpoint; wanted another"):
        checkpoints.save(sharded, folder, 9)
    return found


def watch(folder):
    """What a rank does to bring a checkpoint to the disk, in order → [(what, inode or names, …)]."""
    events, fsync, rename = [], os.fsync, Path.rename

    def noted_fsync(handle):
        found = os.fstat(handle)
        names = sorted(os.listdir(handle)) if stat.S_ISDIR(found.st_mode) else None
        events.append(("fsync", found.st_ino, found.st_size if names is None else names))
        fsync(handle)

    def noted_rename(path, target):
        events.append(("rename", path.stat().st_ino, Path(target).name))
        return rename(path, target)

    with mock.patch("os.fsync", noted_fsync), mock.patch.object(Path, "rename", noted_rename):
        checkpoints.save(mixed(), folder, 5)
    return events


def in_a_world_of_two(folder):
    return save_and_go_on(f"{folder}/on"), spoil(f"{folder}/spoilt"), watch(f"{folder}/watched")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """→ the folder, and what each of two ranks found."""
    folder = tmp_path_factory.mktemp("two")
    return folder, launch(in_a_world_of_two, 2, str(folder), timeout=240.0)


def test_any_number_of_ranks_goes_on_where_others_stopped(two):
    folder, ranks = two
    assert (ranks[0][0][0][0]["frozen.weight"] > 0.3).all()
    for p in (1, 2, 3):
        for rank in launch(go_on, p, f"{folder}/on", timeout=240.0):
            for (saved, stage), (loaded, end, rate) in rank.items():
                then, later, _ = ranks[0][0][saved]
                assert rate == 0.02 and later["norm.num_batches_tracked"] == 5
                for name, right in then.items():
                    assert torch.equal(loaded[name], right), (p, saved, stage, name)
                    if p == 2 and "running" not in name:  # which differ by rank
                        assert torch.equal(end[name], later[name]), (
                            "the same bits as without a stop"
                        )


def test_a_spoilt_checkpoint_is_an_error_on_all_ranks_and_changes_nothing(two):
    for _, found, _ in two[1]:
        for how, message in SPOILT.items():
            told, unchanged = found[how]
            assert message in told and unchanged, (how, told)


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(two):
    """Without fsync a machine that fails may keep the name and lose what is in the files."""
    folder, ranks = two
    (*_, first), (*_, second) = ranks
    place = folder / "watched" / "step-5"
    sizes = {path.stat().st_ino: path.stat().st_size for path in place.iterdir()}
    inode = {path.name: path.stat().st_ino for path in (place, *place.iterdir())}
    # rank 0 makes the folder, whose name is in the one above; then
    folder_above = ("fsync", folder.stat().st_ino, sorted(path.name for path in folder.iterdir()))
    assert first.pop(0) == folder_above
    files = ["manifest.json", "rank-0.pt", "rank-1.pt"]
    # a rank brings its own file to the disk, whole
    for rank, events in enumerate((first, second)):
        mine = inode[f"rank-{rank}.pt"]
        assert events[0] == ("fsync", mine, sizes[mine])
    assert len(second) == 1
    # then rank 0 the manifest, the names in the folder, the folder's own name, and what holds it
    assert first[1] == ("fsync", inode["manifest.json"], sizes[inode["manifest.json"]])
    assert first[2] == ("fsync", inode["step-5"], files)
    assert first[3] == ("rename", inode["step-5"], "step-5")
    assert first[4] == ("fsync", place.parent.stat().st_ino, ["step-5"])
    assert len(first) == 5


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def batch(step):
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(step)).double()


ADAM = partial(torch.optim.Adam, lr=1e-2)


def undisturbed():
    """The parameters after 0, 1, 2 … steps, by torch alone."""
    module = small()
    optimizer = ADAM(list(module.parameters()))
    for step in range(1, 100_000):
        yield nn.utils.parameters_to_vector(module.parameters()).detach().clone()
        optimizer.zero_grad()
        (module(batch(step)).square().sum() / 6).backward()
        optimizer.step()


def train_until_killed(folder, stage, wanted, moments):
    """Loads the last checkpoint, trains, and saves after each step; this rank is killed at its
    moment.
    """
    module = small()
    sharded, step = shard(module, ADAM, stage, [module[0], module[2]]), 0
    if there := checkpoints.whole(folder):
        step = checkpoints.load(sharded, there[-1], new_draws=True)
    found = nn.utils.parameters_to_vector(numbers(sharded).values())
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    if not moments:
        return step
    threading.Timer(moments[dist.get_rank()], os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        step += 1
        sharded(local_rows(batch(step))).square().sum().backward()
        sharded.step(6)
        checkpoints.save(sharded, folder, step)


@pytest.mark.parametrize("times, successes, halves", [
    (6, 1, 0), pytest.param(20, 5, 1, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_run_that_is_killed_again_and_again_is_the_run_without_a_break(
    tmp_path, times, successes, halves
):
    """And more often where the machine is so busy that it hardly comes forward."""
    draw, right = random.Random(0), undisturbed()
    wanted, last, forward, unfinished = next(right), 0, 0, 0
    for n in range(3 * times):
        if n >= times and forward >= successes and unfinished >= halves:
            break
        p = 1 + n % 3  # on one to three ranks, in each stage
        moments = [draw.uniform(0, 0.12) for _ in range(p)]
        with pytest.raises(RankError, match="SIGKILL"):
            launch(train_until_killed, p, str(tmp_path), n % 4, wanted, moments)
        there = checkpoints.whole(tmp_path)
        end = checkpoints.step_of(there[-1]) if there else 0
        forward += end > last
        for _ in range(last, end):
            wanted = next(right)
        last = end
        unfinished += bool(list(tmp_path.glob(f"*{checkpoints.UNFINISHED}")))
    assert set(launch(train_until_killed, 3, str(tmp_path), 3, wanted, [])) == {last}
    assert forward >= successes, "it came forward"
    assert unfinished >= halves, "and some were killed while a checkpoint was being written"
