"""`make gpu`: all that needs a GPU, in stages, the most valuable first; as much as there is time for.

    python -m tools.gpu [--seconds 520] [--out records]      on a machine with a GPU
    python -m tools.gpu --rehearse                           on one without: the same, tiny, nothing recorded

Needs a Python with NumPy, PyTorch, Triton and CuPy. Wheels of pure Python that are missing there may lie in
wheels/: array_api_compat for the tests. Each stage is a process of its own, so that none takes another with
it, and has its time. Records are rewritten after every table; what a stage has done is in them, and in
gpu.json beside them. The same command again goes on from there, also on another machine of the kind to which
the folder was brought: what is done is looked for in --out, then in records/.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("numpy", "torch", "triton", "cupy")
LEFT_FOR = 8  # seconds that a stage must have
REHEARSED = ("ed/error_diffusion", "precision/amp_in_practice")  # whose cells take seconds


@dataclass(frozen=True)
class Stage:
    """A process: ``python -m`` these arguments, for so many seconds at the most. ``parts``: those of a
    benchmark, which says itself which of them are done; ``needs``: modules.
    """

    name: str
    arguments: tuple
    seconds: int
    parts: tuple = ()
    needs: tuple = ()
    again: bool = False  # whether it runs in every call


def measured(name, benchmark, seconds, *parts, needs=()):
    return Stage(name, ("benchmarks", benchmark, "--device", "cuda", "--resume"), seconds, parts, needs)


TESTS = ("tests/ed", "tests/lstm", "tests/precision", "tests/test_devices.py", "tests/test_timing.py")
STAGES = (
    Stage("smoke", ("tools.smoke",), 60, again=True),
    Stage("persistent kernel", ("tools.smoke", "persistent"), 40, again=True),
    measured("ED: paths, cuts", "ed", 150, "paths", "variants"),
    measured("LSTM: the ladder", "lstm", 120, "climb", "ladder, 1 layers", "ladder, 4 layers"),
    measured("ED: the article", "ed", 120, "article, float64", "article, float32", "backpropagation"),
    measured("LSTM: formats", "lstm", 120, "formats, 1 layers", "formats, 4 layers"),
    Stage("tests", ("pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *TESTS), 240,
          needs=("pytest", "hypothesis", "array_api_compat", "ml_dtypes")),
    measured("precision: encoder, products", "precision", 200, "encoder", "products"),
    measured("ED: sizes", "ed", 200, "depth", "networks", "width", "smaller"),
    measured("ED: compilers", "ed", 240, "compilers"),
    measured("LSTM: training, sizes", "lstm", 200, "training, 1 layers", "training, 4 layers", "combine",
             "batch", "hidden"),
    measured("precision: MLP, LeNet", "precision", 200, "MLP", "LeNet"),
    measured("fine-tuning", "finetuning", 300, "float32", "bfloat16", "float16",
             needs=("pooch", "tokenizers", "safetensors")),
    Stage("chapters' cells", ("tools.cells",), 240, needs=("matplotlib", "sklearn", "array_api_compat")),
)  # fmt: skip


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tools.gpu")
    parser.add_argument("--seconds", type=float, default=520, help="for all of it; no stage runs longer")
    parser.add_argument("--out", default="records", type=Path, help="the folder of the records")
    parser.add_argument("--stages", nargs="*", default=(), help="only those whose names contain one of these")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, at tiny sizes")
    options = parser.parse_args(arguments)
    stages = [s for s in STAGES if not options.stages or any(part in s.name for part in options.stages)]
    lay_wheels()
    if options.rehearse:
        with tempfile.TemporaryDirectory() as folder:
            well = [rehearsed(stage, Path(folder)) for stage in stages if stage.name != "tests"]
        sys.exit(not all(well))
    if reason := obstacle():
        print(f"make gpu {reason}. On a machine with one it would run, in {options.seconds:.0f} seconds:")
        print(*(f"  {stage.name}: at most {stage.seconds} s" for stage in stages), sep="\n")
        sys.exit(f"Nothing was run. `{sys.executable} -m tools.gpu --rehearse` tries it without a GPU.")
    sys.exit(not run(stages, options))


def lay_wheels():
    """Puts wheels of pure Python, and the book itself, on the path of every process that is started."""
    wheels = sorted(map(str, (ROOT / "wheels").glob("*-none-any.whl")))
    sys.path += wheels
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *wheels, os.environ.get("PYTHONPATH", "")])


def obstacle():
    """Why nothing can be run here, or None."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        return f"needs {', '.join(missing)}, which this Python lacks ({sys.executable})"
    import torch

    return None if torch.cuda.is_available() else "needs a GPU, and PyTorch sees none on this machine"


def run(stages, options):
    """Runs the stages that are not done, while there is time, and says what became of each → all is well."""
    from benchmarks import old_records as records
    from ed_lib import machine
    from ed_lib import records as tables

    folder = records.slug(machine.name("cuda"))
    done, end = ledger(folder, options.out), time.monotonic() + options.seconds
    code = tables.code_hash(["ed_lib.*", "ed_lib.ed.*", "ed_lib.lstm.*", "ed_lib.precision.*"])
    states = {}
    for stage in stages:
        left = end - time.monotonic()
        missing = [name for name in stage.needs if importlib.util.find_spec(name) is None]
        if not stage.again and not stage.parts and done.get(stage.name) == ["done", code]:
            states[stage.name] = "was done"
        elif missing:
            states[stage.name] = f"left: {', '.join(missing)} is not here; lay its wheel into wheels/"
        elif left < LEFT_FOR:
            states[stage.name] = "left: no time"
        else:
            seconds = min(stage.seconds, left)
            extra = ["--out", str(options.out), "--seconds", f"{0.8 * seconds:.0f}"] if stage.parts else []
            states[stage.name] = process(stage, [*stage.arguments, *extra], seconds)
            done[stage.name] = [states[stage.name], code]
            path = options.out / folder / "gpu.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(done, indent=1, sort_keys=True) + "\n")
    print("\nWhat became of it, in this call:")
    print(*(f"  {name}: {state}" for name, state in states.items()), sep="\n")
    return all(state in ("done", "was done") for state in states.values())


def ledger(folder, out):
    """{stage: [what became of it, by which code]} of calls before this one."""
    for place in (out, ROOT / "records"):
        if (path := place / folder / "gpu.json").is_file():
            return json.loads(path.read_text())
    return {}


def process(stage, arguments, seconds):
    """Runs Python with these arguments, its output shown as it comes → "done", "failed" or "stopped"."""
    print(f"\n--- {stage.name}, at most {seconds:.0f} s", flush=True)
    if stage.parts:
        arguments = [*arguments, "--parts", *stage.parts]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1"}
    child = subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, env=environment)
    try:
        from benchmarks import old_harness as harness

        return {0: "done", harness.LEFT: "in part: no time for the rest"}.get(child.wait(seconds), "failed")
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return "stopped: it took too long"


def rehearsed(stage, folder):
    """Runs a stage with a stand-in for the GPU, at tiny sizes → whether it went well."""
    module, *rest = stage.arguments
    tiny = ["--tiny", *rest] if module.startswith("tools.") else rest
    tiny += [f"book/{name}.ipynb" for name in REHEARSED] if module == "tools.cells" else []
    if stage.parts:
        tiny += ["--tiny", "--out", str(folder)]
        stage = Stage(stage.name, stage.arguments, stage.seconds, tuple(map(as_tiny, stage.parts)))
    state = process(stage, ["tools.stand_in", module, *tiny], 600)
    print(f"{stage.name}: {state}", flush=True)
    return state == "done"


def as_tiny(part):
    """The part of the tiny size; it trains two layers where the large one trains four."""
    return part.replace("training, 4", "training, 2")


if __name__ == "__main__":
    main()
