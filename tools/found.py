"""What a page is found by: the words of searches, and what previews of links show and say."""

import base64
from pathlib import Path

import yaml

from ed_lib import figures
from tools.pages import ROOT

# Of each chapter, where the book has an address: its first figure.
PREVIEWS = Path("_static/previews")
# What a search for these words finds first: of each page a list, read below.
INDEX = {
    "your_own_step": "slow | slow GPU | slow training | low GPU utilization | profiler",
    "honest_timing": "launch overhead | torch.cuda.synchronize | cuda synchronize | timeit",
    "fast_forward": "torch.compile",
    "splitting_the_work": "all-reduce | allreduce | all reduce",
    "data_parallel": "DDP | batch size | critical batch size",
    "when_it_does_not_fit": "ZeRO | FSDP | OOM | CUDA out of memory | gradient checkpointing"
    " | flash attention",
    "model_parallel": "pipeline bubble | tensor parallelism | pipeline parallelism",
    "ten_thousand_devices": "MFU | model FLOPs utilization",
    "asynchronous": "straggler | parameter server",
    "when_a_device_dies": "checkpoint | NCCL watchdog | NCCL hang",
    "mixed_precision": "bf16 | mixed precision",
    "amp_in_practice": "NaN | NaN loss | loss NaN | GradScaler | bf16 on T4 | bf16 T4"
    " | gradient accumulation",
    "training_in_eight_bits": "FP8",
    "how_few_bits": "quantization | GPTQ",
    "one_token_at_a_time": "GEMV | KV cache | decode",
    "one_step": "CUDA graphs | LSTM slow | slow LSTM",
}


def index(path):
    """What makes a search find this chapter: lines of its first cell."""
    if path.stem not in INDEX:
        return ""
    # What is marked "!" is what a search shows first.
    words = ", ".join(f"! {word}" for word in INDEX[path.stem].split(" | "))
    return f"\n\n```{{index}} {words}\n```"


def promise():
    """The front page's description, for search engines and previews of links."""
    words = " ".join(yaml.safe_load((ROOT / "CITATION.cff").read_text())["abstract"].split())
    told = {"og:description": words, "myst": {"html_meta": {"description": words}}}
    return f"---\n{yaml.safe_dump(told, allow_unicode=True)}---\n"


def address():
    """Where the book is published, or "" for nowhere."""
    return yaml.safe_load((ROOT / "_config.yml").read_text())["html"]["baseurl"]


def picture(nb, path, source):
    """Makes a chapter's first figure the picture that previews of its links show; ``source`` is the
    folder of the pages. Where the book has no address, no preview would find it.
    """
    outputs = [output.get("data", {}) for cell in nb.cells for output in cell.get("outputs", [])]
    drawn = [data for data in outputs if figures.FOR_THE_PAGE in data]
    if drawn and address():
        file = source / "book" / PREVIEWS / f"{path.stem}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(drawn[0]["image/png"]))
        nb.metadata["og:image"] = (PREVIEWS / file.name).as_posix()
        nb.metadata["og:image:alt"] = str(drawn[0]["text/plain"]).partition(". ")[0]
