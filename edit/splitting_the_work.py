# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Splitting the work
#
# **When one device is not enough, in which ways can the work be split, and how can one tell beforehand what each of them costs?**
#
# Two devices can compute twice as much in a second as one. They rarely train a network twice as fast, because they have to tell each other things, and telling takes time. What has to be told depends on where one cuts: through the batch, through the layers, or between them. So the cost of a cut can be worked out before a line of it is written: count the messages and the bytes, and multiply by what a message and a byte take on the link at hand.
#
# This chapter builds that tool. The next ones use it, one for each way to cut.
#
# <div class="admonition note">
# <p class="admonition-title">Before you start</p>
#
# - **You will build** processes that talk to each other; four ways to add up a tensor over all of them, counted to the byte; and a cost model with two constants, which you will measure on your machine.
# - **Time:** half an hour to read; well under a minute to run on two CPU cores.
# - **Device:** any. The devices of this part are processes on a CPU; the same code runs on several GPUs.
# - **Know first:** what a tensor is, and roughly how a network is trained. No earlier chapter is needed.
#
# </div>

# %% [markdown]
# The first cell prepares the chapter, and prints the machine that made what you see.

# %% tags=["setup"]
REPOSITORY = "https://github.com/OWNER/REPOSITORY"
try:
    import ed_lib.notebook
except ModuleNotFoundError:
    if "OWNER" in REPOSITORY:
        raise RuntimeError(
            "ed_lib is missing, and this copy of the book does not say where it is. "
            "Put the address of its git repository into REPOSITORY, and run again."
        ) from None
    # %pip install --quiet git+{REPOSITORY}
    import ed_lib.notebook
ed_lib.notebook.setup()

# %% [markdown]
# The tools: everything on many devices is in `ed_lib.parallel`.

# %%
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from ed_lib import figures, notebook
from ed_lib.parallel import advice, collectives, costs, launch

# %% [markdown]
# ## Devices
#
# A **CPU** has a few strong cores. Each is built to finish *one* stream of instructions soon: it guesses branches, reorders instructions, and keeps what it may need again in large caches. A **GPU** has thousands of weak ones. It is built to finish *many* equal streams per second, and hides the time that memory takes by having others ready to go on. Drawing triangles was the first such work; matrix products are another. Using a GPU for what is not graphics was called **GPGPU**, general-purpose computing on GPUs, when it was still a trick. **CUDA** is NVIDIA's language and library for it, for NVIDIA's GPUs; **OpenCL** is an open standard for the same purpose, for the devices of many makers. The libraries of deep learning grew on CUDA, and PyTorch, CuPy and Triton use it here.
#
# The first part of this book asked what one device can do. From here on there are $p$ of them. Each has memory of its own, and a link to the others that is much slower than that memory. Nothing else is needed for what follows, so a *process* on a CPU serves as a device: its memory is its own, and what it sends goes through the machine's network layer. What processes on two cores cannot show is speed at $p$ above two. Where this book needs that, it counts, and computes from the counts.
#
# A process in such a group is called a **rank**, after its number: 0 to $p - 1$. `launch` starts $p$ of them, runs one function in each, and returns what each of them returned. The function must be one that another process can import. A cell's functions are not, as `launch` says:

# %%
def ranks_and_sums(value):
    ...


try:
    launch(ranks_and_sums, 2, 10)
except ValueError as error:
    print(error)

# %% [markdown]
# So the function goes into a file. Inside, `torch.distributed` knows the rank and the size of the group, and moves tensors. The folder is a temporary one here; your own would stand beside your notebook.

# %%
folder = Path(tempfile.mkdtemp())
sys.path.insert(0, str(folder))
(folder / "first_ranks.py").write_text('''
import torch, torch.distributed as dist

def around(value):
    """Every rank sends a number to the next one, and adds what it gets to its own."""
    rank, p = dist.get_rank(), dist.get_world_size()
    mine, other = torch.tensor([value + rank]), torch.empty(1, dtype=torch.int64)
    request = dist.isend(mine, (rank + 1) % p)
    dist.recv(other, (rank - 1) % p)
    request.wait()
    return f"rank {rank} of {p}: {mine.item()} + {other.item()} = {(mine + other).item()}"
''')  # fmt: skip
import first_ranks

print(*launch(first_ranks.around, 2, 10), sep="\n")

# %% [markdown]
# A launch takes about two seconds, most of them for importing PyTorch, so it pays to put several experiments into one. If a rank raises, hangs, or is killed, `launch` ends all of them within its timeout and says which rank it was, and where.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
from ed_lib.parallel import RankError

(folder / "bad_ranks.py").write_text("import torch.distributed as dist\n\n\ndef fail():\n    if dist.get_rank() == 1:\n"
                                     "        raise KeyError('lost')\n    dist.barrier()\n")
import bad_ranks

try:
    launch(bad_ranks.fail, 2)
except RankError as error:
    assert error.rank == 1 and "KeyError: 'lost'" in str(error)
else:
    raise AssertionError("no error")

# %% [markdown]
# ## Where to cut
#
# | letter | meaning |
# |---|---|
# | $p$ | devices, or ranks |
# | $B$ | samples in a batch |
# | $W$, $L$ | width of a layer (cells), number of layers; $W^2 L$ parameters |
# | $m$ | micro-batches, into which a pipeline cuts a batch |
# | $n$ | bytes of a tensor that is sent |
# | $\alpha$, $\beta$ | seconds for a message, seconds for each byte in it |
#
# A training step is a product of three sizes: samples, layers, and cells of a layer. Each can be cut.
#
# | cut | each device has | what is sent in a step | how often | chapter |
# |---|---|---|---|---|
# | **data parallel**: through the batch | all parameters, $B/p$ samples | the gradients, $W^2 L$ numbers | once | "Data parallel" |
# | **pipeline**: between layers | $L/p$ layers, all samples | activations and their gradients, $2BW$ numbers at each cut | $2m$ messages at each cut | "Model parallel" |
# | **tensor parallel**: through the layers | $1/p$ of each layer, all samples | activations and their gradients, $BW$ numbers, four times for each two layers | $L$ all-reduces | "Model parallel" |
#
# Data parallelism sends what grows with the *parameters*. The other two send what grows with the *batch*. That alone decides many cases. Two variants change *when* things are sent: "Asynchronous" lets no worker wait for another, and "ED on many devices" has no backward pass to send.
#
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# **{cite:t}`zhang2023`**, section 13.5, names the same three: a network can be split between its layers, within its layers, or by the data, and it recommends the last as the simplest, usable whenever a GPU's memory is large enough. The chapters that follow build all three and count what they send; the last section here computes when each of them is the fastest.
#
# </div>

# %% [markdown]
# ## What a message costs
#
# Send a message of $n$ bytes, and measure how long it takes. To a good approximation
#
# $$ t(n) = \alpha + n \beta . $$
#
# $\alpha$ is the **latency**: what a message takes however short it is, for system calls, for waking the receiver, for light to travel. $\beta$ is the time for one byte; $1/\beta$ is the **bandwidth**. Two numbers for a link, and they differ a lot between links: within a GPU's box microseconds and hundreds of GB/s, between boxes over Ethernet some ten microseconds and a few GB/s.
#
# To measure them, rank 0 sends a tensor to rank 1, which sends it back. Half the time of that is one message. Every send of this part goes through `Wire.exchange`, which counts.

# %%
notebook.source(collectives.Wire)

# %% [markdown]
# One launch of two ranks measures the link and, for later, four ways to add up a tensor. **Predict:** how many bytes can you send in the time of one empty message?

# %%
SIZES = [4 * 2**k for k in range(0, 23, 2)]  # bytes, up to 16 MiB
(folder / "link_ranks.py").write_text('''
from ed_lib.parallel import costs

def measure(sizes):
    return costs.ping_pong(sizes), costs.time_all_reduces(sizes)
''')
import link_ranks

times, all_reduces = launch(link_ranks.measure, 2, SIZES)[0]
link = costs.fit(SIZES, times)
print(link)
print(f"in the time of an empty message: {link.alpha / link.beta:,.0f} bytes")

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
fig, ax = plt.subplots()
ax.loglog(SIZES, np.array(times) * 1e6, "o", color=figures.BLUE, label="measured, median")
grid = np.geomspace(SIZES[0], SIZES[-1], 100)
ax.loglog(grid, (link.alpha + grid * link.beta) * 1e6, color=figures.ORANGE, label="α + nβ, fitted")
ax.loglog(grid, grid * link.beta * 1e6, color=figures.GREY, ls="--", lw=1.3, label="nβ: the floor for its bandwidth")
ax.set(xlabel="bytes of the message, n", ylabel="time (µs)", ylim=(link.alpha * 2e5, None))
ax.legend(fontsize=9)
figures.show(fig, alt="Time of a message between two processes against its size, on logarithmic axes: level for small "
             "messages, then rising in proportion to the bytes. A fitted line alpha plus n beta follows both parts.")

# %% [markdown]
# Short messages all cost the same, so sending many of them is the expensive way. Long ones cost what their bytes cost. The bend is at $\alpha / \beta$ bytes. The points are medians on a machine with other things to do; a link between processes on one machine is a copy in memory that the CPU makes, and shares the cores with the computing.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
assert link.beta > 0 and times[-1] > 3 * times[0]  # 16 MiB take longer than 4 bytes, on any machine

# %% [markdown]
# ## Adding up over all devices
#
# The workhorse of data and tensor parallelism is the **all-reduce**: every rank has a tensor of $n$ bytes, and afterwards every rank has the sum of all. Here are four ways to do it with sends and receives alone.
#
# - **naive:** everyone sends to rank 0, one after the other; rank 0 adds, and sends the sum to each.
# - **tree:** pairs add up, then pairs of pairs, …; and the sum goes back down the same tree.
# - **ring:** the tensor is cut into $p$ parts. Each part goes around the ring once, being added to by everyone, and a second time, being copied.
# - **halving-doubling:** ranks swap halves with a partner and add, then quarters with another, …; and then back, doubling.
#
# | | messages one after another | bytes one after another |
# |---|---|---|
# | naive | $2(p-1)$ | $2(p-1)\,n$ |
# | tree | $2\lceil \log_2 p \rceil$ | $2\lceil \log_2 p \rceil\, n$ |
# | ring | $2(p-1)$ | $2\frac{p-1}{p}\, n$ |
# | halving-doubling ($p$ a power of two) | $2 \log_2 p$ | $2\frac{p-1}{p}\, n$ |
#
# The first column is paid in $\alpha$, the second in $\beta$ {cite:p}`thakur2005`. The ring is a few lines, in two halves that are useful by themselves:

# %%
notebook.source(collectives.ring_reduce_scatter)
notebook.source(collectives.ring_all_gather)

# %% [markdown]
# **Predict** before you run the next cell: which of the four sends the fewest bytes in total, over all ranks together?

# %%
(folder / "sum_ranks.py").write_text('''
import torch, torch.distributed as dist
from ed_lib.parallel import collectives

def add_up(n):
    """All algorithms on n whole numbers, against PyTorch's own: {algorithm: (right, Traffic)}."""
    mine = torch.arange(n, dtype=torch.float32) + dist.get_rank()
    right, found = mine.clone(), {}
    dist.all_reduce(right)
    for name in collectives.ALGORITHMS:
        ours = mine.clone()
        traffic = collectives.all_reduce(ours, name)
        found[name] = torch.equal(ours, right), traffic
    return found
''')
import sum_ranks

P, N = 4, 1000
counted = launch(sum_ranks.add_up, P, N)

# %% mystnb={"code_prompt_show": "Show the code of the table"} tags=["hide-input", "nbval-check-output"]
rows = []
for name in collectives.ALGORITHMS:
    each = [rank[name] for rank in counted]
    sent = [traffic for _, traffic in each]
    rows.append({"algorithm": name, "right": "yes" if all(right for right, _ in each) else "no",
                 "messages, all ranks": sum(t.messages for t in sent), "bytes, all ranks": sum(t.bytes for t in sent),
                 "bytes, the busiest rank": max(t.bytes for t in sent), "rounds": costs.rounds(name, P)})
notebook.table(rows, f"An all-reduce of {N} numbers of 4 bytes over {P} ranks, as counted")

# %% [markdown]
# None. All four send the same $2(p-1)n$ bytes, since each of $p - 1$ ranks must give its numbers away and get the sum. What differs is how many bytes have to go *one after another*, through one rank. In the naive way rank 0 receives and sends everything; in the ring every rank sends the same little, at the same time.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
for name in collectives.ALGORITHMS:
    total = sum((rank[name][1] for rank in counted), collectives.Traffic())
    assert total == costs.traffic(name, 4 * N, P) and total.bytes == 2 * (P - 1) * 4 * N
    assert all(rank[name][0] for rank in counted)
assert [rank["ring"][1].bytes for rank in counted] == [2 * (P - 1) * 4 * N // P] * P
assert max(rank["naive"][1].bytes for rank in counted) == (P - 1) * 4 * N

# %% [markdown]
# ### Which one, when?
#
# With the two constants of the link just measured, the model says what each would take on 8 and on 64 devices that are joined by such links.

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(5.7, 3.3), sharey=True)
sizes = np.geomspace(1e2, 1e9, 60)
for ax, p in zip(axes, (8, 64), strict=True):
    for name, colour, ls in zip(collectives.ALGORITHMS, figures.COLOURS, ("-", "-", "-", "--"), strict=False):
        ax.loglog(sizes, [costs.all_reduce(name, n, p, link) for n in sizes], color=colour, ls=ls, label=name)
    ax.loglog(sizes, 2 * (p - 1) / p * sizes * link.beta, color=figures.GREY, ls=":", label="floor")
    ax.set(title=f"{p} devices", xlabel="bytes, n")
axes[0].set(ylabel="time in the model (s)", ylim=(link.alpha / 3, None))
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8.5)
figures.show(fig, alt="Time of an all-reduce against its bytes for four algorithms, on 8 and on 64 devices, in the model. "
             "For few bytes tree and halving-doubling are lowest and the ring is as slow as the naive way; for many "
             "bytes ring and halving-doubling lie together on the floor, and the naive way is far above.")

# %% [markdown]
# Few bytes: latency rules, and the tree's few rounds win by far over the ring. Many bytes: bandwidth rules, and the ring reaches the floor $2\frac{p-1}{p}n\beta$, which nothing can beat, since every rank must send so much. The floor hardly grows with $p$: **the time to add up a large tensor does not depend on how many devices there are.** That is why data parallelism scales. Halving-doubling is good at both ends; it wants a power of two, and links between far-apart ranks that are as good as those between neighbours. Libraries such as NCCL and gloo choose among these by size and topology.
#
# Does the model hold? For two ranks, it can be compared with the clock.

# %% mystnb={"code_prompt_show": "Show the code of the table"} tags=["hide-input"]
rows = []
for index in (0, len(SIZES) // 2, len(SIZES) - 1):
    line = {"bytes": SIZES[index]}
    for name in collectives.ALGORITHMS:
        line[f"{name}, measured / model"] = all_reduces[name][index] / costs.all_reduce(name, SIZES[index], 2, link)
    rows.append(line)
notebook.table(rows, "An all-reduce over two ranks: the measured time as a multiple of the model's")

# %% [markdown]
# Within a small factor, with a reason for each way it is off. The model leaves out the additions and the memory for what arrives, and, above all, it lets a rank send and receive at the same time at full speed. A network card can. Two processes on two cores cannot: both directions are copies made by the same cores. So for large tensors ring and halving-doubling, which send both ways at once, are further above the model here than the tree. It is a model for choosing between ways, not for predicting to the percent.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
for p in (8, 64):
    few, many = ({a: costs.all_reduce(a, n, p, link) for a in collectives.ALGORITHMS} for n in (4, 1e10))
    assert few["tree"] < few["ring"] and few["halving_doubling"] < few["ring"] and few["ring"] <= few["naive"] * 1.01
    assert many["ring"] < many["tree"] < many["naive"]
    assert many["ring"] < 1.1 * 2 * (p - 1) / p * 1e10 * link.beta + 2 * p * link.alpha
assert costs.path_bytes("ring", 1e9, 64) / costs.path_bytes("ring", 1e9, 8) < 1.13

# %% [markdown]
# ## A recommendation, with reasons
#
# Now put computing and sending together. For a stack of $L$ layers of width $W$, a batch of $B$ samples and $p$ devices of a known rate, `advice` adds up the time and the memory of each way. Here is how it counts two of them:

# %%
notebook.source(advice._data)
notebook.source(advice._tensor)

# %% [markdown]
# The devices of the example have round numbers: 100 TFLOP/s, 80 GiB, a link of 10 µs and 100 GB/s. Three jobs on eight of them. **Predict** the winner of each.

# %%
gpus = advice.Devices(8, rate=1e14, memory=80 * 2**30, link=costs.Link(1e-5, 1e-11))
jobs = {
    "small model, large batch": advice.Job(layers=16, width=1024, batch=65_536),
    "large model, small batch": advice.Job(layers=64, width=16_384, batch=256),
    "tiny": advice.Job(layers=4, width=256, batch=64),
}
for name, job in jobs.items():
    plan, because = advice.recommend(job, gpus)
    print(name, *because, sep="\n    ")

# %% [markdown]
# The reasons matter more than the winner. A small share of computing says that more devices will not help, and a look at the bytes says what would: for data parallelism a larger batch, since its bytes do not depend on it.
#
# The same for all widths and batches at once, with fast and with slow links:

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
NAMES = ["one device", "data parallel", "pipeline", "tensor parallel"]
widths, batches = 2 ** np.arange(7, 16), 2 ** np.arange(4, 18)
fig, axes = plt.subplots(1, 2, figsize=(5.7, 3.5), sharey=True)
for ax, (title, wire) in zip(axes, {"10 µs, 100 GB/s": costs.Link(1e-5, 1e-11),
                                    "50 µs, 1 GB/s": costs.Link(5e-5, 1e-9)}.items(), strict=True):
    devices = advice.Devices(8, 1e14, 80 * 2**30, wire)
    for b in batches:
        for w in widths:
            plans = [plan for plan in advice.plans(advice.Job(32, int(w), int(b)), devices) if not plan.obstacle]
            if plans:
                colour = figures.COLOURS[NAMES.index(min(plans, key=lambda plan: plan.seconds).name)]
                ax.scatter(b, w, color=colour, marker="s", s=68)
    ax.set(title=title, xlabel="batch, B", xscale="log", yscale="log")
    ax.grid(False)
axes[0].set_ylabel("width, W")
for name, colour in zip(NAMES, figures.COLOURS, strict=False):
    axes[0].scatter([], [], color=colour, marker="s", label=name)
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8.5)
figures.show(fig, alt="Two maps of the fastest way to split a step over eight devices, by batch and width, for a fast and a "
             "slow link. One device is best for narrow layers and small batches, data parallelism for large batches, "
             "model parallelism for wide layers with small batches. With the slow link the regions move outwards.")

# %% [markdown]
# Read the map from the bytes. Data parallelism has to hide $W^2 L$ gradients behind a computation of $B W^2 L$ multiplications, so whether it can depends on the batch alone: its region has an upright border. To the left of that border a pipeline is fastest, which sends $BW$ numbers at each cut, as long as there is enough to compute. Towards the lower left corner nothing pays: there is too little to compute to be worth a message. White squares fit in no way. Tensor parallelism wins nowhere on this map; its place is where a pipeline has no micro-batches to fill it with, or where a single layer does not fit.
#
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# **{cite:t}`qiita2020day4`** says that model parallelism pays more the more parameters a model has, and that communication is the bottleneck. **We computed** both from counted messages: going up in the map, towards more parameters at the same batch, the winner changes from data parallelism to the model's cuts, as it says. Going to the right, towards more samples, it changes back. And communication is the bottleneck in a part of the map, not in all of it: with enough samples for each device, computing is.
#
# </div>

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
winners = {name: advice.recommend(job, gpus)[0].name for name, job in jobs.items()}
assert winners["small model, large batch"] == "data parallel" and winners["tiny"] == "one device"
assert winners["large model, small batch"] in ("pipeline", "tensor parallel")
share = {b: (lambda plan: plan.computing / plan.seconds)(advice.plans(advice.Job(32, 4096, b), gpus)[1])
         for b in (256, 65_536)}
assert share[256] < 0.2 < 0.8 < share[65_536]
up = [advice.recommend(advice.Job(32, w, 4096), gpus)[0].name for w in (512, 8192)]
assert up[0] == "data parallel" and up[1] in ("pipeline", "tensor parallel")

# %% [markdown]
# ## More than one machine
#
# Nothing in a function that ranks run says where the ranks are. On several machines, `torchrun` starts them, one command on each machine, and `launch` then joins the group that it finds instead of starting processes of its own:
#
# ```bash
# # on one machine, two processes
# torchrun --standalone --nproc-per-node 2 script.py
# # on each of two machines with eight GPUs; HOST is the name of one of them
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 script.py
# ```
#
# with `launch(function, 2)` in the script for the first, and `launch(function, 16, backend="nccl")` for the second.

# %% [markdown]
# ## Summary
#
# - A step can be cut through the batch (send gradients, once), between layers (send activations, at each cut), or through layers (send activations, at each layer).
# - A message costs $\alpha + n\beta$. Many short messages pay for latency, few long ones for bandwidth.
# - All four all-reduces send the same bytes in total. They differ in how many go one after another.
# - For large tensors the ring takes $2\frac{p-1}{p}n\beta$, whatever the number of devices; for small ones a tree is faster.
# - Gradients do not grow with the batch and activations do not grow with the depth: that decides which cut is cheapest.
# - Whether splitting pays at all is a comparison of computing with sending, and can be made beforehand.

# %% [markdown]
# ## Exercises
#
# **1. Where the ring overtakes the tree.** For $p$ ranks and a link, from how many bytes on is the ring faster than the tree in the model? Write a function of $p$ (a power of two, above 2) and the link.

# %% tags=["exercise"]
def crossover(p, link):
    """The bytes n at which tree and ring take the same time."""
    ...


# %% [markdown]
# The check compares your answer with the two costs at that size.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(1)
def check_crossover(solution):
    for p in (4, 8, 64):
        for wire in (costs.Link(1e-5, 1e-11), costs.Link(5e-4, 1e-9)):
            n = solution(p, wire)
            assert n is not None, "crossover returns nothing"
            tree, ring = (costs.all_reduce(a, n, p, wire) for a in ("tree", "ring"))
            assert abs(tree - ring) < 1e-9 * tree, f"p = {p}: tree {tree:.3g} s, ring {ring:.3g} s"


check_crossover(crossover)

# %% mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"] cellView="form"
# @title Solution 1
def crossover_solved(p, link):
    rounds = 2 * np.log2(p)
    more_latency = (2 * (p - 1) - rounds) * link.alpha
    fewer_seconds_a_byte = (rounds - 2 * (p - 1) / p) * link.beta
    return more_latency / fewer_seconds_a_byte


check_crossover(crossover_solved)

# %% [markdown]
# **2. A ring on paper.** Play the first half of the ring with lists: `parts[r][k]` is rank $r$'s part $k$. In each of $p - 1$ steps, all ranks at once send one part to the next rank, which adds it to its own. Afterwards `parts[r][r]` must be the sum over all ranks of part $r$.

# %% tags=["exercise"]
def reduce_scatter(parts):
    """Changes parts, a list of p lists of p numbers, in place."""
    ...


# %% [markdown]
# The check looks at what each rank holds in the end.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(2)
def check_reduce_scatter(solution):
    for p in (2, 3, 5):
        parts = [[10**k * (r + 1) for k in range(p)] for r in range(p)]
        sums = [sum(column) for column in zip(*parts, strict=True)]
        solution(parts)
        held = [parts[r][r] for r in range(p)]
        assert held == sums, f"p = {p}: the ranks hold {held}; wanted {sums}"


check_reduce_scatter(reduce_scatter)

# %% mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"] cellView="form"
# @title Solution 2
def reduce_scatter_solved(parts):
    p = len(parts)
    for step in range(1, p):
        sent = [parts[r][(r - step) % p] for r in range(p)]  # all at once
        for r in range(p):
            parts[r][(r - 1 - step) % p] += sent[r - 1]  # from the rank before


check_reduce_scatter(reduce_scatter_solved)

# %% [markdown]
# **3. How many devices?** A step takes $c$ seconds on one device and has $n$ bytes of gradients. With data parallelism over $p$ devices it takes $c/p$ and a ring. Which $p$ from 1 to 64 makes the step shortest?

# %% tags=["exercise"]
def best_count(c, n, link):
    """The number of devices, from 1 to 64, that makes the step shortest."""
    ...


# %% [markdown]
# The check tries computing that is worth nothing, something, and everything.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(3)
def check_best_count(solution):
    wire = costs.Link(1e-5, 1e-11)
    for c, n, right in ((1e-5, 1e8, 1), (0.1, 1e8, 64), (4e-3, 1e8, 10)):
        found = solution(c, n, wire)
        assert found == right, f"{c} s and {n:.0e} bytes: {found}; wanted {right}"


check_best_count(best_count)

# %% mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"] cellView="form"
# @title Solution 3
def best_count_solved(c, n, link):
    return min(range(1, 65), key=lambda p: c / p + costs.all_reduce("ring", n, p, link))


check_best_count(best_count_solved)

# %% [markdown]
# ## References
#
# - {cite:t}`zhang2023`: the three ways to split, from which the next chapter starts.
# - {cite:t}`qiita2020day4`: data and model parallelism, synchronous and asynchronous.
# - {cite:t}`thakur2005`: the algorithms of all-reduce and their costs; {cite:t}`patarasuk2009`: the ring, and why nothing sends less.
