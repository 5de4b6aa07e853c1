"""Published training runs, the three constants that are fitted to some of them, and how far the rest are off.

Megatron-LM: D. Narayanan et al. (2021), table 1; micro-batches and chunks are those of the authors' scripts
(NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh). Llama 3: A. Grattafiori et al. (2024), table 4: its first
chunk has only the embedding, its last the output, so a chunk is one layer, 126 and two missing on 16 × 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ed_lib.parallel.ranks.costs import Link
from ed_lib.parallel.scale.mesh import Efficiency, Layout, Machine, Model, rate, step

# What a large 16-bit product reaches: S. Bekman, "Machine learning engineering" (stas00/ml-engineering,
# compute/accelerator); memory, NVLink (one direction) and network: data sheets; latencies: a guess, of little
# effect.
A100 = Machine("A100", 271.2e12, 2.039e12, 80e9, Link(5e-6, 1 / 300e9), Link(10e-6, 1 / 25e9))
H100 = Machine("H100", 794.5e12, 3.35e12, 80e9, Link(5e-6, 1 / 450e9), Link(10e-6, 1 / 50e9))
PEAKS = {"A100": 312e12, "H100": 989e12}  # of their data sheets


@dataclass(frozen=True)
class Run:
    """A published run: what was trained, on what, how it was split; and FLOP/s of a device."""

    name: str
    model: Model
    machine: Machine
    layout: Layout
    published: float

    def predicted(self, efficiency: Efficiency) -> float:
        """FLOP/s of a device, by the model."""
        seconds = sum(step(self.model, self.machine, self.layout, efficiency).values())
        return rate(self.model, self.layout, seconds)


def _megatron(size, layers, hidden, heads, tensor, pipeline, devices, batch, micro, chunks, tera):
    model = Model(layers, hidden, heads, 2048, 51_200, wide=4 * hidden, kv_heads=heads)
    overlap = pipeline == 1  # PyTorch's DDP; with a pipeline sums came after it
    options: dict[str, Any] = {"micro": micro, "chunks": chunks, "recompute": True, "overlap": overlap}
    layout = Layout(devices, tensor, pipeline, batch, **options)
    return Run(f"Megatron {size}", model, A100, layout, tera * 1e12)


def llama(tokens: int = 8192) -> Model:
    """Llama 3 with 405 billion parameters, on sequences of so many tokens."""
    return Model(126, 16_384, 128, tokens, 128_256, 53_248, kv_heads=8, gated=True, causal=True)


def _llama(devices, context, tokens, batch, tera):
    layout = Layout(devices, 8, 16, batch, context=context, chunks=8, sharded=True, overlap=True, gradient=4)
    return Run(f"Llama 3, {devices:,}, {tokens // 1024}k", llama(tokens), H100, layout, tera * 1e12)


MEGATRON = [
    _megatron("1.7B", 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
    _megatron("3.6B", 30, 3072, 32, 2, 1, 64, 512, 16, 1, 138),
    _megatron("7.5B", 36, 4096, 32, 4, 1, 128, 512, 16, 1, 142),
    _megatron("18.4B", 40, 6144, 48, 8, 1, 256, 1024, 8, 1, 135),
    _megatron("39.1B", 48, 8192, 64, 8, 2, 512, 1536, 4, 1, 138),
    _megatron("76.1B", 60, 10240, 80, 8, 4, 1024, 1792, 2, 3, 140),
    _megatron("145.6B", 80, 12288, 96, 8, 8, 1536, 2304, 2, 2, 148),
    _megatron("310.1B", 96, 16384, 128, 8, 16, 1920, 2160, 1, 2, 155),
    _megatron("529.6B", 105, 20480, 128, 8, 35, 2520, 2520, 1, 3, 163),
    _megatron("1008B", 128, 25600, 160, 8, 64, 3072, 3072, 1, 1, 163),
]
LLAMA = [
    _llama(8192, 1, 8192, 2048, 430),
    _llama(16384, 1, 8192, 2048, 400),
    _llama(16384, 16, 131_072, 128, 380),
]


def fit(runs: Sequence[Run]) -> Efficiency:
    """The three efficiencies, each at most 1, with which the model is nearest to these runs: least squares of
    the relative errors. ValueError for fewer than three runs.
    """
    from scipy.optimize import least_squares

    if len(runs) < 3:
        raise ValueError(f"runs has {len(runs)}; wanted at least three, one for each efficiency")

    def errors(values):
        return [run.predicted(Efficiency(*values)) / run.published - 1 for run in runs]

    return Efficiency(*least_squares(errors, [0.8, 0.8, 0.8], bounds=(0.1, 1.0)).x.tolist())


def utilisation(runs: Sequence[Run]) -> float:
    """The one share of the data sheet's peak that fits these runs best, in the same sense: the baseline."""
    shares = np.array([run.published / PEAKS[run.machine.name] for run in runs])
    return float((1 / shares).sum() / (1 / shares**2).sum())
