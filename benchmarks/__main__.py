"""The command line of the benchmarks. What each is about, its module declares (shared/harness)."""

import argparse
import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.shared import harness
from ed_lib import arrays


def modules():
    """{name: module} of all benchmarks: those that run by themselves first."""
    names = [file.name for file in pkgutil.iter_modules(benchmarks.__path__) if not file.ispkg]
    found = {
        name: importlib.import_module(f"benchmarks.{name}") for name in names if name[0] != "_"
    }
    by_itself = sorted(name for name, module in found.items() if harness.is_timed(module))
    others = sorted(found.keys() - {*by_itself})
    return {name: found[name] for name in [*by_itself, *others]}


def main(arguments=None):
    known = modules()
    timed = [name for name, module in known.items() if harness.is_timed(module)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = f"of {', '.join(known)}; without: {', '.join(timed)}"
    parser.add_argument("benchmark", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--only", nargs="+", default=(), metavar="TABLE", help="without: all")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: GPU, or CPU"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="at sizes that say nothing, for a rehearsal"
    )
    parser.add_argument("--out", help="the folder of the records; without: records, or _build/tiny")
    options = parser.parse_args(arguments)
    unknown = set(options.benchmark) - known.keys()
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; NAME is {names}")
    if options.only and len(options.benchmark) != 1:
        parser.error("--only is of one benchmark; name it")
    out = options.out or ("_build/tiny" if options.tiny else "records")
    device = options.device
    if device == "auto":
        device = "cuda" if arrays.gpu_count() else "cpu"
    if device == "cuda" and not arrays.gpu_count():
        lacks = arrays.gpu_lacks()
        wanted = f"wanted a GPU with {lacks}" if lacks else "PyTorch sees no GPU on this machine"
        sys.exit(f"--device cuda: {wanted}")
    on_gpu = [name for name, module in known.items() if harness.tables(module, "cuda")]
    states = []
    for name in options.benchmark or (on_gpu if device == "cuda" else timed):
        mine = harness.tables(known[name], device)
        if not mine:
            print(f"{name}: left out, since it is about {'a CPU' if device == 'cuda' else 'a GPU'}")
            continue
        unknown = set(options.only) - set(mine)
        if unknown:
            parser.error(f"{name} has no table {', '.join(sorted(unknown))}; {', '.join(mine)}")
        only = options.only or (mine if device == "cuda" else ())
        states += harness.run(known[name], device, out, only=only, tiny=options.tiny).values()
    sys.exit(any(state != "done" for state in states))


if __name__ == "__main__":
    main()
