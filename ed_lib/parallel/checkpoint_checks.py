"""What a checkpoint must have, before anything of it is loaded: each error says what is missing."""

from typing import Any

from ed_lib.parallel import random_states
from ed_lib.parallel.sampler import Sampler

# The names of what a file holds. An older save() left out the last two.
OLD = {"layout", "untrained", "options", "parts"}
WRITTEN = OLD | {"random states", "place in the data"}


class CheckpointError(ValueError):
    """A checkpoint that is not what was written, or is of another model: names the file or the
    tensor.
    """


def compare(written: dict[str, str], wanted: dict[str, str]) -> None:
    """:class:`CheckpointError` for the first tensor that is another, or of one side only."""
    for name in written | wanted:
        there = written.get(name, "nothing")
        here = wanted.get(name, "nothing")
        if there != here:
            raise CheckpointError(f"{name} is {there}; wanted {here}")


def check_random_states(files: list[dict[str, Any]], ranks: int) -> None:
    """:class:`CheckpointError` unless each of so many ranks has its random states."""
    otherwise = "or load() with new_draws=True, which draws new numbers"
    for rank, file in enumerate(files):
        if "random states" not in file:
            raise CheckpointError(f"rank-{rank}.pt has no random states; wanted them, {otherwise}")
    if len(files) != ranks:
        came = f"the random states are those of {len(files)} ranks"
        raise CheckpointError(f"{came}; wanted those of {ranks}, {otherwise}")
    here = sorted(random_states.states())
    for rank, file in enumerate(files):
        there = sorted(file["random states"])
        if there != here:
            came = f"rank-{rank}.pt has random states of {', '.join(there)}"
            raise CheckpointError(f"{came}; wanted {', '.join(here)}, {otherwise}")


def check_place(files: list[dict[str, Any]], sampler: Sampler | None) -> None:
    """:class:`CheckpointError` unless a sampler finds its place, and a place its sampler."""
    state = files[0].get("place in the data")
    if sampler is None and state is not None:
        raise CheckpointError("it has a place in the data; wanted a sampler that goes there")
    if sampler is None:
        return
    if state is None:
        raise CheckpointError("it has no place in the data; wanted one, for the sampler")
    try:
        sampler.check_state(state)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
