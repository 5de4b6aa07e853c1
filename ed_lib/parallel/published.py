"""Published training runs, and the one constant that is fitted to five of them.

Megatron-LM: D. Narayanan et al. (2021), table 1, with the micro-batches and chunks of the authors' scripts
(NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh), and table 2, in which no chunks are assumed. Llama 3:
A. Grattafiori et al. (2024), table 4, gradients sharded, weights not; the first chunk has only the embedding,
the last the output, so a chunk is one layer. (Its third row prints 4 copies where 16,384 devices have 8.)
"""

from dataclasses import dataclass
from functools import partial

from ed_lib.parallel.links import Link
from ed_lib.parallel.mesh import Layout, Machine, Model, rate, step

# What a large 16-bit product reaches: S. Bekman, "Machine learning engineering" (stas00/ml-engineering,
# compute/accelerator); peaks, memory's bandwidth, NVLink (one direction), network: data sheets; latencies: a
# guess, of little effect. Capacity: 79.1 GiB, what CUDA offers of the 81,559 MiB (H100) or 81,920 (A100) of a
# card, before its own context's and NCCL's buffers.
A100 = Machine(312e12, 271.2e12, 2.039e12, 84.9e9, Link(5e-6, 1 / 300e9), Link(10e-6, 1 / 25e9))
H100 = Machine(989e12, 794.5e12, 3.35e12, 84.9e9, Link(5e-6, 1 / 450e9), Link(10e-6, 1 / 50e9))
REACHED = 0.761  # of ``rate``, by products: fitted to every second row of table 1, from the second on


@dataclass(frozen=True)
class Run:
    """A published run: what was trained, on what, how it was split; and FLOP/s of a device."""

    name: str
    model: Model
    machine: Machine
    layout: Layout
    published: float

    def predicted(self, products: float = REACHED, memory: float = 1.0, links: float = 1.0) -> float:
        """FLOP/s of a device, by the model, where the machine reaches these shares of its rates."""
        machine = self.machine.slower(products, memory, links)
        seconds = sum(step(self.model, machine, self.layout).values())
        return rate(self.model, self.layout, seconds, 3 + self.layout.recompute)

    def miss(self, *shares: float) -> float:
        """How far the model is off, relative to what was published."""
        return self.predicted(*shares) / self.published - 1


def _megatron(
    size, layers, hidden, heads, tensor, pipeline, devices, batch, tera, micro=1, chunks=1, stage=0
):
    model = Model(layers, hidden, heads, 2048, 51_200, wide=4 * hidden, kv_heads=heads)
    layout = Layout(
        devices, tensor, pipeline, batch, micro=micro, chunks=chunks, stage=stage, recompute=True,
        overlap=pipeline == 1,  # as PyTorch's DDP does; with a pipeline, sums came after it
    )  # fmt: skip
    return Run(f"{size}, {devices:,}", model, A100, layout, tera * 1e12)


def llama(tokens: int = 8192) -> Model:
    """Llama 3 with 405 billion parameters, on sequences of so many tokens."""
    return Model(126, 16_384, 128, tokens, 128_256, 53_248, kv_heads=8, gated=True, causal=True)


def _llama(devices, context, tokens, batch, tera):
    layout = Layout(devices, 8, 16, batch, context, 1, 8, 2, sequence=True, overlap=True, gradient=4)
    return Run(f"Llama 3, {devices:,}, {tokens // 1024}k", llama(tokens), H100, layout, tera * 1e12)


TABLE_1 = [
    _megatron("1.7B", 24, 2304, 24, 1, 1, 32, 512, 137, 16),
    _megatron("3.6B", 30, 3072, 32, 2, 1, 64, 512, 138, 16),
    _megatron("7.5B", 36, 4096, 32, 4, 1, 128, 512, 142, 16),
    _megatron("18.4B", 40, 6144, 48, 8, 1, 256, 1024, 135, 8),
    _megatron("39.1B", 48, 8192, 64, 8, 2, 512, 1536, 138, 4),
    _megatron("76.1B", 60, 10240, 80, 8, 4, 1024, 1792, 140, 2, 3),
    _megatron("145.6B", 80, 12288, 96, 8, 8, 1536, 2304, 148, 2, 2),
    _megatron("310.1B", 96, 16384, 128, 8, 16, 1920, 2160, 155, 1, 2),
    _megatron("529.6B", 105, 20480, 128, 8, 35, 2520, 2520, 163, 1, 3),
    _megatron("1008B", 128, 25600, 160, 8, 64, 3072, 3072, 163),
]
_gpt3, _mt_nlg = partial(_megatron, "174.6B", 96, 12288, 96), partial(_megatron, "529.6B", 105, 20480, 128)
TABLE_2 = [_gpt3(8, 12, n, 1536, tera) for n, tera in ((384, 153), (768, 149), (1536, 141))]
TABLE_2 += [_mt_nlg(8, 35, n, 2240, tera) for n, tera in ((560, 171), (1120, 167), (2240, 159))]
ZERO_3 = [_gpt3(1, 1, n, 1536, tera, 1536 // n, stage=3) for n, tera in ((384, 144), (768, 88), (1536, 44))]
LLAMA = [
    _llama(8192, 1, 8192, 2048, 430),
    _llama(16384, 1, 8192, 2048, 400),
    _llama(16384, 16, 131_072, 128, 380),
]
