"""A minute of everything that a GPU must be able to do: `python -m tools.smoke [--tiny] [check ...]`.

Each check says ok, or what failed, and none stops the rest. The persistent kernel is run when it is named:
its programs wait for each other, and should they wait for ever, only ending the process helps.
"""

import sys
import time

import numpy as np

DEPTH, BATCH = 64, 64


def versions():
    """The libraries, and the GPU."""
    import cupy
    import torch
    import triton

    from ed_lib import machine

    print(f"  {machine.name('cuda')}, {machine.facts('cuda')['gpu']}, NumPy {np.__version__}")
    print(f"  PyTorch {torch.__version__}, Triton {triton.__version__}, CuPy {cupy.__version__}")


def ed(backend="torch"):
    """A step by every path against float64, and how the sweeps went."""
    from ed_lib import arrays
    from ed_lib.ed import EDNetwork, paths

    options = dict(rule="signed", init="fan_in")
    exact = EDNetwork(784, 32, DEPTH, **options, dtype="float64", path="layers")
    rng = np.random.default_rng(0)
    x, target = rng.random((BATCH, 784)), rng.integers(0, 2, (BATCH, 1)).astype(float)
    right = exact.step(x, target)
    for path in paths.PATHS:
        net = EDNetwork(784, 32, DEPTH, **options, backend=backend, device="cuda", path=path)
        output = arrays.to_numpy(net.step(net.asarray(x), net.asarray(target)))
        weights = net.state_dict()
        off = max(np.abs(weights[name] - value).max() for name, value in exact.state_dict().items())
        off = max(off, np.abs(output - right).max())
        print(f"  {path}: deviates by {off:.1e}", net.swept if path == "sweeps" else "")
        assert off < 1e-5


def cupy():
    """The same with CuPy's arrays."""
    ed("cupy")


def backward():
    """Forward, backward and descent as one graph."""
    import torch

    from ed_lib import devices
    from ed_lib.ed import EDNetwork, baselines

    net = EDNetwork(784, 32, 64, rule="signed", init="fan_in", backend="torch", device="cuda", path="layers")
    twins = [baselines.Autograd(net, rate=0.1) for _ in range(2)]
    x, target = torch.rand(64, 784, device="cuda"), torch.ones(64, 1, device="cuda")
    graph = devices.record(lambda: twins[0].step(x, target), x)  # takes a step before it is recorded
    graph()
    for _ in range(2):
        twins[1].step(x, target)
    off = max((a - b).abs().max().item() for a, b in zip(*(t.parameters() for t in twins), strict=True))
    print(f"  largest difference of a weight after two steps: {off:.1e}")
    assert off < 1e-5


def lstm():
    """Every rung, and the batched wavefront as a graph, against nn.LSTM."""
    import torch

    from ed_lib import devices
    from ed_lib.lstm import BEYOND, LSTM, RUNGS

    size = 2 * DEPTH
    module, x = torch.nn.LSTM(size, size, 2).cuda(), torch.randn(6, 8, size, device="cuda")
    with torch.no_grad():
        right = module.double()(x.double())[0].float()
        module.float()
        for rung in (*RUNGS, *BEYOND):
            ours = LSTM.from_torch(module, rung=rung)
            answers = []
            graph = devices.record(lambda ours=ours, answers=answers: answers.append(ours(x)[0]), x)
            graph()
            for answer in (ours(x)[0], answers[-1]):
                torch.testing.assert_close(answer, right, rtol=0, atol=1e-4)


def fp8():
    """A product of FP8 numbers."""
    import torch

    from ed_lib.precision import fp8

    if not fp8.in_hardware("cuda"):
        return print("  this GPU has no FP8")
    a, b = torch.randn(64, 128, device="cuda"), torch.randn(32, 128, device="cuda")
    found = fp8.product(fp8.to_float8(a), fp8.to_float8(b), torch.bfloat16, fast=True)
    off = float((found.float() - a @ b.t()).norm() / (a @ b.t()).norm())
    print(f"  relative deviation: {off:.1e}")
    assert off < 0.1


def clocks():
    """CUDA events, and what the GPU reaches for an instant."""
    import torch

    from ed_lib import timing

    x = torch.ones(2**20 * DEPTH, device="cuda")
    y = torch.empty_like(x)
    seconds = min(timing.elapsed(lambda: y.copy_(x), blocks=10))
    print(f"  a copy of {x.nbytes / 2**20:.0f} MiB: {timing.text(seconds)}")


def persistent():
    """Five steps of the kernel whose programs wait for each other, in float16."""
    import torch

    from ed_lib.lstm import persistent

    size = 8 * DEPTH
    module, x = torch.nn.LSTM(size, size, 4).cuda().half(), torch.randn(5, BATCH, size, device="cuda").half()
    with torch.no_grad():
        found = persistent.forward(x, None, persistent.pack(module.all_weights))[0]
        off = (found - module(x)[0]).abs().max().item()
    print(f"  largest difference: {off:.1e}")
    assert off < 1e-2


CHECKS = (versions, clocks, ed, cupy, backward, lstm, fp8)


def main(names):
    global DEPTH, BATCH
    if names[:1] == ["--tiny"]:  # for a rehearsal
        names, DEPTH, BATCH = names[1:], 2, 2
    failed = []
    for check in [globals()[name] for name in names] or CHECKS:
        start = time.monotonic()
        try:
            check()
            state = "ok"
        except Exception as error:  # whatever it is, the others go on
            state = f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.150}"
            failed.append(check.__name__)
        print(f"{check.__name__}: {state} ({time.monotonic() - start:.1f} s)", flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
