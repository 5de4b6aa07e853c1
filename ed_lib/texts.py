"""A text to learn from, character by character: tiny Shakespeare, as A. Karpathy's char-rnn has it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ed_lib import check

TEXTS = {  # {name: (its file, where it was published, SHA-256)}
    "tinyshakespeare": (
        "input.txt",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    )
}


@dataclass(frozen=True, eq=False)
class Text:
    """A text as numbers of its characters, (N,) int64: nine tenths to learn from, the last tenth to test."""

    train: torch.Tensor = field(repr=False)
    held_out: torch.Tensor = field(repr=False)
    characters: str  # all that occur, sorted: number k is characters[k]


def load(name: str = "tinyshakespeare") -> Text:
    """The :class:`Text` from $ED_DATA/<name>/, else from the user's cache, else downloaded; its SHA-256 is
    checked whichever way it came.

    ValueError for an unknown name or a file that is not the published one; FileNotFoundError when ED_DATA
    names no folder; OSError when there is no copy and none can be downloaded; ImportError without pooch.
    """
    check.choice("name", name, TEXTS)
    content = _file(name).read_text(encoding="utf-8")
    characters = "".join(sorted(set(content)))
    number = {character: n for n, character in enumerate(characters)}
    numbers = torch.tensor([number[character] for character in content])  # (N,)
    cut = len(numbers) * 9 // 10
    return Text(numbers[:cut], numbers[cut:], characters)


def _file(name):
    file, url, sha256 = TEXTS[name]
    root = Path(os.environ.get("ED_DATA") or ".")
    if not root.is_dir():
        raise FileNotFoundError(f"ED_DATA is {str(root)!r}; wanted a folder that holds {name}/")
    try:
        import pooch
    except ImportError as error:
        raise ImportError(f"texts need pooch: pip install pooch ({error})") from error
    mine = root / name / file
    if os.environ.get("ED_DATA") and mine.is_file():
        if (found := pooch.file_hash(str(mine))) != sha256:
            raise ValueError(f"{mine} is not the published file: SHA-256 {found}; wanted {sha256}")
        return mine
    folder = pooch.os_cache("ed_lib") / name
    return Path(pooch.retrieve(url, f"sha256:{sha256}", fname=file, path=folder, progressbar=True))


def batches(
    numbers: torch.Tensor, batch: int, steps: int, *, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Without end: x and what follows each of its characters, (T, B) each, from places drawn by ``seed``.

    ValueError where the text is not longer than ``steps``.
    """
    if len(numbers) <= steps:
        raise ValueError(f"steps is {steps}; wanted fewer than the text's {len(numbers)} characters")
    draw, span = torch.Generator().manual_seed(seed), torch.arange(steps)[:, None]  # (T, 1)
    while True:
        starts = torch.randint(len(numbers) - steps, (batch,), generator=draw)
        x = starts + span  # (T, B), places
        yield numbers[x], numbers[x + 1]
