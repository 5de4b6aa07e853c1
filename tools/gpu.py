"""`make gpu`: everything that needs a GPU, in one command, on a machine that has one.

Needs a Python with NumPy, PyTorch, CuPy and Triton, and none of the book's tools. What else is missing it
tries to install into a folder of its own, _build/gpu/site; where that fails, it leaves out the part that
needs it, and says so. Writes the record of this GPU into records/, and into _build/gpu/ the logs and the
chapters as executed there.
"""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "_build" / "gpu"
SITE = OUT / "site"
SMALL = {"array_api_compat": "array-api-compat", "tqdm": "tqdm", "threadpoolctl": "threadpoolctl"}
TESTS = {"pytest": "pytest", "hypothesis": "hypothesis", "ml_dtypes": "ml_dtypes"} | SMALL
CHAPTERS = {"nbclient": "nbclient", "ipykernel": "ipykernel", "nbformat": "nbformat", "yaml": "pyyaml"}
CHAPTERS |= {
    "keras": "keras",
    "matplotlib": "matplotlib",
    "sklearn": "scikit-learn",
    "pooch": "pooch",
} | SMALL


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(SITE), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(SITE))
    needs = [name for name in ("numpy", "torch", "cupy", "triton") if importlib.util.find_spec(name) is None]
    if needs:
        sys.exit(f"make gpu needs {', '.join(needs)}, which this Python lacks: {sys.executable}")
    import torch

    if not torch.cuda.is_available():
        sys.exit("make gpu needs a GPU, and PyTorch sees none on this machine")
    failed = part("the benchmark", ["-m", "benchmarks", "--device", "cuda", "--out", "records"])
    if there("the tests", TESTS):
        failed |= part(
            "the tests",
            ["-m", "pytest", "-q", "tests/ed", "tests/precision", "tests/lstm", "tests/test_roofline.py"],
        )
    if there("the chapters", CHAPTERS):
        failed |= part("the chapters", ["-m", "tools.notebooks", "--out", str(OUT)])
    sys.exit(failed)


def part(what, arguments):
    """Runs Python with these arguments, its output shown and kept → True if it failed."""
    print(f"--- {what}", flush=True)
    start, log = time.monotonic(), OUT / f"{what.split()[-1]}.log"
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for line in process.stdout:
            print(line, end="", flush=True)
            file.write(line)
    print(
        f"--- {what}: {'failed' if process.wait() else 'done'} after {time.monotonic() - start:.0f} s",
        flush=True,
    )
    return bool(process.returncode)


def there(what, packages):
    """True when the packages {module: package} are there, or could be installed into SITE."""
    missing = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", SITE, *missing]
        result = subprocess.run(command, capture_output=True, text=True)
        importlib.invalidate_caches()
        if result.returncode:
            print(f"--- {what}: left out, {', '.join(missing)} cannot be installed here")
            return False
    return True


if __name__ == "__main__":
    main()
