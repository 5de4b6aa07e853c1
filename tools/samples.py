"""python -m tools.samples: makes ed_lib/samples from the published sets, and prints what
ed_lib/data.py says of each file. The text, which is whole, lies there already.
"""

import hashlib
import lzma

import numpy as np

from ed_lib import data, published

FIRST = {"train": 12_800, "t10k": 2_000}  # so many images, by how a file's name begins


def idx(array):
    """An array of uint8 as the content of an IDX file."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def sample(name):
    """The first images and labels of a set, as IDX files one after another."""
    whole = data.load(name, whole=True)
    files = zip(published.SETS[name][1], whole[:4], strict=True)
    return b"".join(idx(array[: FIRST[file.partition("-")[0]]]) for file, array in files)


def main():
    for name in data.TITLES:
        content = sample(name)
        packed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
        (data.SAMPLES / f"{name}.xz").write_bytes(packed)
        print(name, len(content), hashlib.sha256(content).hexdigest())


if __name__ == "__main__":
    main()
