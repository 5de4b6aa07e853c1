"""Files that others have published, each named by its address and the SHA-256 of its bytes."""

import os
from pathlib import Path


def file(folder: str, name: str, url: str, sha256: str) -> Path:
    """Where a file is: $ED_DATA/folder/name, else in the user's cache, else downloaded there from ``url``.
    Its SHA-256 is checked whichever way it came.

    ValueError for a file that is not the published one; FileNotFoundError when ED_DATA names no folder;
    OSError when there is no copy and none can be downloaded; ImportError without pooch.
    """
    root = Path(os.environ.get("ED_DATA") or ".")
    if not root.is_dir():
        raise FileNotFoundError(f"ED_DATA is {str(root)!r}; wanted a folder that holds {folder}/")
    try:
        import pooch
    except ImportError as error:
        raise ImportError(f"{folder}/{name} needs pooch: pip install pooch ({error})") from error
    mine = root / folder / name
    if os.environ.get("ED_DATA") and mine.is_file():
        if (found := pooch.file_hash(str(mine))) != sha256:
            raise ValueError(f"{mine} is not the published file: SHA-256 {found}; wanted {sha256}")
        return mine
    cache = pooch.os_cache("ed_lib") / folder
    return Path(pooch.retrieve(url, f"sha256:{sha256}", fname=name, path=cache, progressbar=True))
