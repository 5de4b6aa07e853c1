"""The numbers that the front page says: of records, or published."""

import re
from functools import cache
from types import SimpleNamespace

import numpy as np

from ed_lib import records

# qiita2024's GPU: its float64 FLOP/s by the data sheet.
RTX_3070 = 0.317e12
GPU = "nvidia-h100-80gb-hbm3"
CPU, XEON = "amd-26-2-avx512-vnni-bf16-2-threads", "intel-6-85-avx512-vnni-2-threads"
LATER_CPU = "amd-25-1-avx2-2-threads"


@cache
def numbers():
    """All numbers that the table and the figure say, not yet rounded, by name."""
    found = _of_the_update() | _of_lstms() | _of_bits() | _of_batches() | _of_workers() | _of_ed()
    return SimpleNamespace(gpu=records.of("ed", GPU).attrs["label"], **found)


def _of_the_update():
    """Of the article's program on the H100, and of a step with and without a backward pass."""
    listing = records.rows(records.of("ed", GPU), table="article", dtype="float64")
    listing = listing.set_index("what")
    # A second run of the article's listing was printed by a chapter's cells.
    printed = "\n".join(records.of("cells", GPU)["printed"])
    again = re.findall(r"^(?:forward|update), the listing.*GPU-0: *(\S+)", printed, re.M)
    forward, update = listing["seconds"][["forward", "update"]]
    saved = {}
    for machine in (GPU, CPU, XEON):
        rows = records.rows(records.of("ed", machine), table="by hand", threads=1)
        took = rows.set_index(["what", "how"])["seconds"]
        ed = took["forward", "ED, layers"] + took["update", "ED, layers"]
        by_hand = took["chain", "by hand"] + took["update", "by hand"]
        saved[machine] = (took["forward", "ED, layers"] + by_hand) / ed
    return {
        "gflop": 1e-9 * listing["floor_flops"]["update"],
        "rtx": 1e-9 * RTX_3070,
        "arithmetic": 1e3 * listing["floor_flops"]["update"] / RTX_3070,
        "returned": 1e3 * listing["launch"]["update"],
        "done": 1e3 * listing["seconds"]["update"],
        "at_once": [
            round(ratio, -1) for ratio in (forward / update, float(again[0]) / float(again[1]))
        ],
        "saved_gpu": saved[GPU],
        "saved_epyc": saved[CPU],
        "saved_xeon": saved[XEON],
    }


def _of_lstms():
    """Of NVIDIA's versions of an LSTM, published and measured: how many times the first one's
    speed, in operations a second.
    """
    lstm = records.of("lstm", GPU)
    four = records.rows(lstm, table="ladder", layers=4, how="graph").set_index("what")
    one = records.rows(lstm, table="ladder", layers=1, how="graph").set_index("what")
    # In FLOP/s: the most operations that a version was counted for are those of all.
    rate = one["floor_flops"].max() / one["seconds"]
    last = four["floor_flops"].max() / four["seconds"]
    # NVIDIA's, in GFLOP/s.
    published = one["published"]
    return {
        "four_layers": four["published"]["wavefront"] / published["baseline"],
        "one_layer": published["combined_inputs"] / published["baseline"],
        "fused": published["fused_pointwise"] / published["streamed_gemms"],
        "gpu_layer": rate["combined_inputs"] / rate["baseline"],
        "gpu_four": last["wavefront"] / rate["baseline"],
        "gpu_cudnn": last["nn.LSTM"] / rate["baseline"],
        "gpu_fused": rate["fused_pointwise"] / rate["streamed_gemms"],
        "gpu_three": rate["fused_pointwise"] / rate["baseline"],
    }


def _of_bits():
    """Of a training step in 16 bits on the H100, and of a smaller LeNet on a CPU."""
    steps = records.of("precision", GPU)
    full, tf32, low = (
        records.row(steps, model="encoder", batch=256, format=name)["seconds"]
        for name in ("float32", "tf32", "bfloat16")
    )
    small = records.rows(
        records.of("precision_accuracy", LATER_CPU), table="smaller models, timed", batch=256
    )
    took = small.set_index("way")["seconds"]
    return {
        "beside_float32": full / low,
        "beside_tf32": tf32 / low,
        "int4": took["int4"] / took["LeNet"],
        "zeros": took["90% zeros"] / took["LeNet"],
        "filters": took["50% of filters cut"] / took["LeNet"],
    }


def _of_batches():
    """The learning rate with which SGD needs the fewest steps, by the samples in a batch."""
    rows = records.rows(records.of("critical_batch", CPU), table="steps, SGD")
    fewest = {}
    for row in rows.itertuples():
        if all(row.steps):  # in every run the network got as far as it should
            best = fewest.get(row.batch, (np.inf, None))
            fewest[row.batch] = min(best, (np.mean(row.steps), row.rate))
    return {"best_rate": {int(batch): rate for batch, (_, rate) in fewest.items()}}


def _of_workers():
    """Of four workers, one of them five times as slow: which share of four fast ones' gradients."""
    seconds = np.array([1, 1, 1, 5])
    return {
        "barrier": 1 / seconds.max(),
        "no_barrier": np.mean(1 / seconds),
        "dismissed": np.mean(seconds == 1),
    }


def _of_ed():
    """Accuracy and seconds of training: the best of error diffusion, and an ordinary network."""
    race = records.of("should_i", LATER_CPU)
    runs = records.rows(race, method="ED")
    ended = [(np.mean(row.test), row.seconds) for row in runs.itertuples()]
    ordinary = records.row(race, method="ordinary network", depth=0)
    return {
        "ed_right": max(ended)[0],
        "ed_seconds": max(ended)[1],
        "ordinary_right": np.mean(ordinary["test"]),
        "ordinary_seconds": ordinary["seconds"],
    }
