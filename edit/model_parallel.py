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
# # Model parallel
#
# **A model can be cut between its layers or through them: what does each cut cost?**
#
# Data parallelism copies the model to every device. That ends when the model does not fit, and it is dear long before: in every step, each device sends between once and twice as many bytes as the model has. The other way is to give each device a *part* of the model. There are two ways to cut one, and they fail in opposite ways. Cut between layers, and little is sent, but devices wait for each other. Cut through the layers, and none waits, but all of them talk in every layer.
#
# Both costs can be worked out on paper, and this chapter does so. Then it runs the same instructions twice: on a simulated clock, and in real processes that count what they send.
#
# <div class="admonition note">
# <p class="admonition-title">Before you start</p>
#
# - **You will build** schedules that say in which order a device works, a clock that draws them, a pipeline that runs them, and a layer that lives on two devices.
# - **Time:** forty minutes to read; under a minute to run on two CPU cores.
# - **Device:** any. The devices are processes on a CPU; the same code runs on several GPUs.
# - **Know first:** the chapter "Splitting the work"; what a gradient is.
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
# The tools: `schedules` and `simulator` for the paper half, `pipeline`, `tensor_parallel` and `cuts` for the processes.

# %%
import itertools

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from ed_lib import data, figures, notebook, records
from ed_lib.parallel import cuts, launch, pipeline
from ed_lib.parallel import schedules, simulator, tensor_parallel
from ed_lib.parallel.schedules import Instruction

# %% [markdown]
# | letter | meaning |
# |---|---|
# | $B$ | samples in a batch |
# | $W$, $L$ | width of a layer; how many layers |
# | $p$ | devices; when a chain is cut, also *stages*, numbered $s = 0 \dots p - 1$ |
# | $m$ | micro-batches: equal parts of a batch |
# | $t_f$, $t_b$ | seconds for one micro-batch in one stage, forward and backward |
#
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# {cite:t}`zhang2023`, section 13.5, names three ways to split the training of a network over devices: the network between its layers, where the interfaces need tight synchronization, the load is hard to balance, and much may have to be sent; the work within the layers, as AlexNet did, with even more synchronization and possibly even more to send; and the data, which it recommends as the simplest.
#
# **We counted**, and the order of the first two holds: a cut through the layers sends more than a cut between them, by a factor below. So does the trouble with balance. But for layers wider than the batch is large, it is data parallelism that sends most, and a cut between layers sends least of the three nearly always. What it costs is idle time.
#
# </div>
#
# ## Cutting a chain
#
# Give each device some consecutive layers. Device 0 computes its part and sends its *activations* to device 1, and so on. Going back, device $p - 1$ begins, and each device sends the *gradient* of its input to the one before.
#
# What a device does is a list of instructions: compute, send, receive. A **schedule** is a function that yields that list for one stage. The simplest takes one micro-batch all the way forward and back before it begins the next one.

# %%
notebook.source(schedules.naive)
notebook.source(schedules._forward)
notebook.source(schedules._backward)

# %% [markdown]
# Three stages, one micro-batch. These are the orders for the stage in the middle:

# %%
for do in schedules.naive(stage=1, stages=3, microbatches=1):
    print(do.op, *([do.microbatch] if do.op != "step" else []), do.what, end=" ")
    print({"send": "to", "receive": "from"}.get(do.op, ""), do.peer if do.what else "")

# %% [markdown]
# To see what such orders lead to, we need a clock and no devices. `simulate` walks through the lists of all stages. A computation takes the seconds that we say; a receive waits until its message is there. A send holds nobody up. Here is the loop at its heart.

# %%
notebook.source(simulator.simulate)

# %% [markdown]
# Four devices, three micro-batches, and a backward pass that takes twice as long as a forward pass, as it usually does: it forms two products where the forward pass forms one. **Predict:** which part of the time does a device work?

# %%
TIMES = {"forward": 1, "backward": 2}
naive = simulator.simulate(schedules.naive, stages=4, microbatches=3, seconds=TIMES)
print(f"{naive.seconds:g} seconds; a device works {naive.busy:.0%} of the time")

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
fig, ax = plt.subplots(figsize=(5.7, 1.9))
simulator.draw(naive, ax)
ax.set(xlabel="time")
figures.show(fig, alt="Timeline of the naive schedule, one row for each of four devices. At any time only one device has "
             "a box: micro-batch 0 goes down the rows in forward boxes and up again in backward boxes twice as "
             "wide, then micro-batches 1 and 2 do the same.")

# %% [markdown]
# Forward boxes are blue, backward boxes orange, and the numbers are those of the micro-batches. One device works at a time, so $p$ devices take exactly as long as one would: $m p (t_f + t_b)$, for a batch whose work is $m p (t_f + t_b)$. The model fits now. It is not faster.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
for p, m, f, b in itertools.product((1, 2, 5), (1, 4), (1, 3), (2, 5)):
    found = simulator.simulate(schedules.naive, p, m, {"forward": f, "backward": b})
    assert found.seconds == m * p * (f + b) and abs(found.busy - 1 / p) < 1e-12

# %% [markdown]
# ## Filling the pipeline
#
# Device 0 need not wait for micro-batch 0 to come back. **GPipe** {cite:p}`huang2019` sends all micro-batches forward, one behind the other, and then all of them back.

# %%
notebook.source(schedules.gpipe)

# %% [markdown]
# Now all devices work at the same time, except at the ends: the last device starts $p - 1$ forward passes late, and the first waits for $p - 1$ backward passes. A device is idle for $(p - 1)(t_f + t_b)$, whatever $m$ is, and works for $m (t_f + t_b)$. So a batch takes
#
# $$ (m + p - 1)(t_f + t_b), \qquad \text{of which the idle share, the \textbf{bubble}, is} \qquad \frac{p - 1}{m + p - 1}. $$
#
# More micro-batches, less bubble. What does that cost? A micro-batch's activations must be kept from its forward pass until its backward pass is done. Count them: at the turn, GPipe holds all $m$. **1F1B** (one forward, one backward; {cite:t}`narayanan2019`) goes back as soon as it can. Stage $s$ runs $p - 1 - s$ micro-batches ahead and then takes turns.

# %%
notebook.source(schedules.one_f_one_b)

# %% [markdown]
# **Predict:** is 1F1B faster than GPipe?
#
# A third idea removes most of the bubble. A backward pass is two computations: the gradient of the *input*, for which the stage before is waiting, and the gradient of the *weights*, for which nobody is. **Zero-bubble** schedules {cite:p}`qi2024` separate them, and do the second where they would otherwise be idle. ZB-H1 keeps no more micro-batches than 1F1B's first stage. ZB-H2 keeps almost twice as many, and uses one thing more: the next batch. Its rows are slanted, so that batches fit together without a gap.

# %%
SPLIT = {"forward": 1, "backward_input": 1, "backward_weight": 1}
names = {"gpipe": "GPipe", "1f1b": "1F1B", "zb_h1": "ZB-H1", "zb_h2": "ZB-H2"}
drawn = {
    name: simulator.simulate(schedules.SCHEDULES[name], 4, 8, TIMES | SPLIT)
    for name in names
}
for name, found in drawn.items():
    print(f"{names[name]:6} {found.seconds:g} seconds, kept at most: {found.live}")

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
fig, axes = plt.subplots(4, 1, figsize=(5.7, 6.4), sharex=True)
for (name, found), ax in zip(drawn.items(), axes, strict=True):
    simulator.draw(found, ax)
    ax.set_title(names[name], loc="left")
for ax in axes:
    ax.set_xlim(0, max(found.seconds for found in drawn.values()))
axes[-1].set_xlabel("time")
figures.show(fig, alt="Four timelines above each other, four devices and eight micro-batches each. GPipe: a triangle of "
             "idle time at the left, in the middle and at the right. 1F1B: as long as GPipe, with forward and "
             "backward boxes alternating. ZB-H1: shorter, with separate boxes for the weights' gradients filling "
             "the right end. ZB-H2: each row without a gap, the rows shifted against each other.")

# %% [markdown]
# 1F1B is **not** faster. It does the same work in another order, with the same bubble, and keeps $\min(m, p - s)$ micro-batches where GPipe keeps $m$. That is its whole merit, and it is a large one: with the memory it saves, one can afford more micro-batches. (In the lower two rows, orange is the gradient of the input and pink that of the weights.)
#
# With $t_b$ and $t_w$ for the two halves of a backward pass, and $t_w$ the shortest of the three, ZB-H1 takes $(p - 1)(t_f + t_b - t_w) + m (t_f + t_b + t_w)$: with equal times, a third of the bubble is left. For ZB-H2 the time of a single batch says little. What counts is the *period*, from the start of one batch to the start of the next.

# %%
def period(schedule, p, m, seconds, batches=12):
    repeated = schedules.repeat(schedule, batches)
    timeline = simulator.simulate(repeated, p, m, seconds)
    late, early = ((batches - n) * m for n in (1, 4))
    return (timeline.begins(0, late) - timeline.begins(0, early)) / 3


for name, schedule in schedules.SCHEDULES.items():
    if name in names:
        found = period(schedule, 4, 8, TIMES | SPLIT)
        print(f"{names[name]:6} period {found:g}, of which {found - 24:g} idle")

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
for p, m in itertools.product((1, 2, 4, 7), (1, 3, 8, 16)):
    for f, b in ((1, 2), (3, 2)):
        both = [simulator.simulate(s, p, m, {"forward": f, "backward": b}) for s in (schedules.gpipe, schedules.one_f_one_b)]
        for found in both:
            assert found.seconds == (m + p - 1) * (f + b) and abs(1 - found.busy - (p - 1) / (m + p - 1)) < 1e-12
        assert both[0].live == [m] * p and both[1].live == [min(m, p - s) for s in range(p)]
    if m >= p:
        for f, b, w in ((1, 1, 1), (3, 2, 2), (2, 4, 1)):
            seconds = {"forward": f, "backward_input": b, "backward_weight": w}
            found = simulator.simulate(schedules.zb_h1, p, m, seconds)
            assert found.seconds == (p - 1) * (f + b - w) + m * (f + b + w) and max(found.live) == p
    if m >= 2 * p - 1:
        assert period(schedules.zb_h2, p, m, SPLIT) == 3 * m
assert max(drawn["zb_h2"].live) == 2 * 4 - 1

# %% [markdown]
# How many micro-batches does it take? Formulas as lines, the simulator as dots, for four devices.

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
counts = np.arange(4, 33, 4)
fine = np.linspace(4, 32, 100)
bubbles = {"GPipe, 1F1B": (3 / (fine + 3), schedules.one_f_one_b), "ZB-H1": (1 / (fine + 1), schedules.zb_h1),
           "ZB-H2": (np.where(fine < 7, np.nan, 0), schedules.zb_h2)}
fig, ax = plt.subplots()
for (label, (line, schedule)), colour in zip(bubbles.items(), figures.COLOURS, strict=False):
    ax.plot(fine, 100 * line, color=colour, label=label)
    dots = np.array([1 - 3 * m / period(schedule, 4, m, TIMES | SPLIT) for m in counts])
    ax.plot(counts, 100 * dots, "o", color=colour, ms=5)
ax.set(xlabel="micro-batches m", ylabel="bubble (% of the time)", ylim=(-2, 46))
ax.legend()
figures.show(fig, alt="Bubble against the number of micro-batches for four devices. GPipe and 1F1B fall from 43 percent "
             "at four micro-batches to below 10 percent at thirty-two. ZB-H1 lies at about a third to a half of "
             "that. ZB-H2 is at zero from eight micro-batches on. Dots of the simulator lie on the lines of the "
             "formulas, but for ZB-H2 with four micro-batches.")

# %% [markdown]
# At $m = 4$ ZB-H2 does not reach zero: it needs $2p - 1$ micro-batches to lean on. And $m$ cannot grow for ever. Each micro-batch holds $B/m$ samples, and below some size a device is slow for lack of work. The batch itself is limited by what training bears (["Data parallel"](data_parallel.ipynb)).
#
# ## A stage that is slower than the others
#
# All this was for equal stages. Let one of four take twice as long. There is a quarter more to do. **Predict:** does the batch take a quarter longer, or nearly twice as long?

# %%
slow = {"forward": [1, 1, 2, 1], "backward": [2, 2, 4, 2]}
even = simulator.simulate(schedules.one_f_one_b, 4, 8, TIMES)
uneven = simulator.simulate(schedules.one_f_one_b, 4, 8, slow)
for name, found in (("even", even), ("uneven", uneven)):
    print(f"{name}: {found.seconds:g} seconds, busy {found.busy:.0%} of the time")

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
fig, ax = plt.subplots(figsize=(5.7, 1.9))
simulator.draw(uneven, ax)
ax.set(xlabel="time")
figures.show(fig, alt="Timeline of 1F1B with a third device twice as slow as the other three. Its row has hardly a gap between "
             "its first and last box. The rows of the other devices are idle about half of the time.")

# %% [markdown]
# It is much nearer to twice, and the nearer the more micro-batches there are. In the steady state every device goes at the pace of the slowest. With GPipe the time is the sum over the stages, once, plus $m - 1$ times the slowest stage: the price of a bad cut is paid $m - 1$ times, that of a long chain once. So a chain should be cut by what its layers *cost*, not by their number. `pipeline.cut` takes costs, and finds the cut whose largest part is least.

# %%
costs = [8, 5, 3, 2, 2, 1, 1]  # seconds of seven layers, as in a network that narrows
by_number = [sum(part) for part in ([8, 5, 3], [2, 2], [1, 1])]
ends = pipeline.balance(costs, 3)
by_cost = [sum(costs[a:b]) for a, b in itertools.pairwise([0, *ends])]
for name, stages in (("by number", by_number), ("by cost", by_cost)):
    found = simulator.simulate(schedules.gpipe, 3, 8, {"forward": stages})
    print(f"{name}: stages of {stages}, {found.seconds:g} seconds")

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
assert uneven.seconds > 1.6 * even.seconds and uneven.busy < 0.75
for stages, m in itertools.product(([1, 1, 2, 1], [3, 1, 2], [5, 1]), (1, 4, 9)):
    seconds = {"forward": stages, "backward": [2 * t for t in stages]}
    found = simulator.simulate(schedules.gpipe, len(stages), m, seconds).seconds
    assert found == 3 * (sum(stages) + (m - 1) * max(stages))
assert max(by_cost) < max(by_number)

# %% [markdown]
# ## The same instructions, in processes
#
# Now the clock is exchanged for processes. Each rank has a stage, goes through its list, and does what it says. Here are the instructions as methods; `forward` keeps what a backward pass will need, and counts it.

# %%
notebook.source(pipeline.Pipeline._forward)
notebook.source(pipeline.Pipeline._backward)
notebook.source(pipeline.Pipeline._send)

# %% [markdown]
# Four details decide whether that works.
#
# - **The loss is a mean over the batch**, so the mean over a micro-batch counts by its share of the samples. With 50 samples in 4 micro-batches the shares are 13, 13, 12 and 12 fiftieths. Averaging the four means would be wrong.
# - **A send must not hold the sender up**, or two neighbours that send to each other wait for ever. So a send is started and its request kept; the tensor must stay until the request has been waited for. One receive is always posted ahead, so that a message travels while the device computes.
# - **Messages have no labels.** NCCL knows none. The $n$-th message on a link is the $n$-th that its receiver takes, and both directions get a queue each. A schedule that would mix them up is refused before it starts, on every rank.
# - **The receiver must know the shape.** When it is built, each stage says in turn what it will give, found on tensors without data. A stage that does not fit is an error on every rank, before anything is computed.
#
# A network for MNIST over three ranks, in float64, with all five schedules. The reference is the same network in one piece.

# %%
mnist = data.load("mnist")
x = torch.from_numpy(data.as_inputs(mnist.train_images[:50], "float64"))
labels = torch.from_numpy(mnist.train_labels[:50]).long()
torch.manual_seed(0)
layers = [nn.Linear(784, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10)]
model = nn.Sequential(*layers).double()
loss = nn.functional.cross_entropy(model(x), labels)
loss.backward()
wanted = {name: weight.grad.clone() for name, weight in model.named_parameters()}

# %% [markdown]
# Now the launch. Each rank gets the model, cuts it, and keeps its part; `one_batch` runs the batch under each schedule in turn.

# %%
names = ["naive", *names]
orders = [schedules.SCHEDULES[name] for name in names]
task = (model, nn.functional.cross_entropy, x, labels, 4, orders)
ranks = launch(pipeline.one_batch, 3, *task)
for n, name in enumerate(names):
    reports, grads = zip(*(rank[n] for rank in ranks), strict=True)
    found = {key: gradient for part in grads for key, gradient in part.items()}
    worst = max((found[key] - wanted[key]).abs().max().item() for key in wanted)
    sent = sum(traffic.bytes for r in reports for traffic in r.sent.values())
    print(f"{name:6} loss {reports[-1].loss:.6f}, worst gradient off by {worst:.0e},", end=" ")
    print(f"{sent:,} bytes, kept {[r.live for r in reports]}")

# %% [markdown]
# The gradients are the unsplit model's, to rounding; under every schedule the same bytes are sent, and each rank kept what the simulator said. The bytes are those of the activations and gradients between the stages, for 50 samples, once: they do not depend on $m$.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
for n, order in enumerate(orders):
    reports, grads = zip(*(rank[n] for rank in ranks), strict=True)
    found = {key: gradient for part in grads for key, gradient in part.items()}
    assert found.keys() == wanted.keys() and all(torch.allclose(found[k], wanted[k], rtol=1e-10, atol=1e-13) for k in wanted)
    assert abs(reports[-1].loss - loss.item()) < 1e-12
    on_paper = simulator.simulate(order, 3, 4, TIMES | SPLIT)
    assert [r.live for r in reports] == on_paper.live
    sent = {route: traffic for r in reports for route, traffic in r.sent.items()}
    assert {route: traffic.messages for route, traffic in sent.items()} == on_paper.messages
    cut_widths = [part[-1](torch.zeros(1, part[-1].in_features).double()).numel() if isinstance(part[-1], nn.Linear)
                  else part[-2].out_features for part in pipeline.cut(model, 3)[:-1]]
    assert sum(traffic.bytes for traffic in sent.values()) == 2 * 50 * 8 * sum(cut_widths)

# %% [markdown]
# One honest remark on the split backward pass. PyTorch's autograd gives the gradient of the input alone, and that of the weights alone, but for the second it walks back through the stage *again*. With several layers in a stage our two halves cost more than the whole, and the zero-bubble schedules' gain is lost. The papers' workers keep the gradient of every layer's output from the first walk, and so does PyTorch's own pipeline.
#
# ### Does the clock agree with the simulator?
#
# The simulator knows two things: what a stage takes for a micro-batch, and what a message takes. Both can be measured by themselves, and then the time of a whole batch can be predicted and measured. One catch: two processes that compute at the same time share a memory and its bandwidth, and each is slower than alone. So the stages are measured while both compute, except for the naive schedule, under which never two do. Where this has been recorded, the figure shows it.

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
recorded = [(record, record.select(table="pipeline")) for record in records.load("parallel")]
for record, rows in ((record, rows) for record, rows in recorded if rows):
    fig, ax = plt.subplots()
    labels_ = [f"{row.case['schedule']}\nm = {row.case['microbatches']}" for row in rows]
    measured = [1e3 * row.completion.median for row in rows]
    predicted = [1e3 * np.median(row.results["predicted"]) for row in rows]
    places = np.arange(len(rows))
    ax.bar(places - 0.2, predicted, 0.38, color=figures.GREY, label="predicted")
    ax.bar(places + 0.2, measured, 0.38, color=figures.BLUE, label="measured")
    ax.set(ylabel="a batch (ms)", title=record.label)
    ax.set_xticks(places, labels_, fontsize=9)
    ax.legend()
    figures.show(fig, alt="Bars of a batch's seconds for three schedules and two numbers of micro-batches, predicted and "
                 "measured side by side.")
if not any(rows for _, rows in recorded):
    print("No pipeline has been recorded yet: no record, no figure.")

# %% [markdown]
# Both are models of a model. Where two "cores" are two threads of one core, as on many rented machines, two stages at work are each about half as fast as one alone. A pipeline then gains nothing over the naive schedule. And the prediction, which knows one speed for each stage, is too long for GPipe and 1F1B: in the bubble the stage that works is faster than it thinks.
#
# ## Cutting through a layer
#
# The other cut leaves the chain whole, and gives each device a slice of every layer. Take two layers with an activation between them, $Y = \sigma(X A)\, C$, and cut $A$ by **columns**: $A = [A_0\ A_1]$. Device $r$ computes $\sigma(X A_r)$, some of the hidden cells. It needs all of $X$, and nothing from the others, because $\sigma$ acts on each cell by itself. Then cut $C$ by **rows**, to match:
#
# $$ Y = \sigma(X A_0)\, C_0 + \sigma(X A_1)\, C_1. $$
#
# Each device has one summand of $Y$, and one all-reduce adds them up. In NumPy, with two devices on one page:

# %%
rng = np.random.default_rng(0)
X, A, C = (rng.normal(size=shape) for shape in ((5, 4), (4, 7), (7, 3)))
slices = zip(np.array_split(A, 2, axis=1), np.array_split(C, 2, axis=0), strict=True)
summands = [np.tanh(X @ A_r) @ C_r for A_r, C_r in slices]  # 4 hidden cells, and 3
print("largest deviation:", np.abs(sum(summands) - np.tanh(X @ A) @ C).max())

# %% [markdown]
# **Predict:** what has to be sent on the way back? The gradient of $Y$ is the same on every device, and each computes the gradients of its slices from it. But the gradient of $X$ is a sum over the slices, $\sum_r (\ldots) A_r^\top$: one all-reduce again.
#
# So there is a sum where the block ends, going forward, and one where it begins, going back. Megatron {cite:p}`shoeybi2019` writes them as two functions. Each is the other in reverse.

# %%
notebook.source(tensor_parallel.Enter)
notebook.source(tensor_parallel.Leave)

# %% [markdown]
# With them the block is three lines. The bias of the second layer is added after the sum, once; inside it would be added $p$ times.

# %%
notebook.source(tensor_parallel.ParallelMLP)

# %% [markdown]
# On two ranks, with 7 hidden cells, so that one has four and the other three. Afterwards the slices are put together again: **merging** shards is a concatenation, and must give back the same bits.

# %%
torch.manual_seed(1)
first, second = nn.Linear(5, 7).double(), nn.Linear(7, 3).double()
inputs, slope = torch.randn(6, 5).double(), torch.randn(6, 3).double()
blocks = launch(tensor_parallel.one_block, 2, first, second, inputs, slope)
for rank, (_, _, grads, _, sent) in enumerate(blocks):
    shapes = {name: tuple(gradient.shape) for name, gradient in grads.items()}
    print(f"rank {rank}: weights {shapes['first.weight']} and {shapes['second.weight']}")
    print(f"  all-reduces: {len(sent['forward'])} forward, {len(sent['backward'])} back")
merged = tensor_parallel.merge([state for _, _, _, state, _ in blocks])
print("merged weight, same bits:", torch.equal(merged["first.weight"], first.weight))

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
leaf = inputs.clone().requires_grad_()
y = second(torch.relu(first(leaf)))
y.backward(slope)
serial = {f"{n}.{k}": w for n, layer in (("first", first), ("second", second)) for k, w in layer.named_parameters()}
for output, gradient, _, _, sent in blocks:
    assert torch.allclose(output, y, rtol=1e-12) and torch.allclose(gradient, leaf.grad, rtol=1e-12)
    assert len(sent["forward"]) == len(sent["backward"]) == 1
for key, gradient in tensor_parallel.merge([grads for _, _, grads, _, _ in blocks]).items():
    assert torch.allclose(gradient, serial[key].grad, rtol=1e-12, atol=1e-15)
assert merged.keys() == serial.keys() and all(torch.equal(merged[key], serial[key]) for key in merged)
for way, tensor in (("forward", y), ("backward", leaf)):  # ring: 2(p − 1)·n bytes by all ranks together
    assert sum(sent[way][0].bytes for *_, sent in blocks) == 2 * tensor.numel() * 8

# %% [markdown]
# ## What each cut sends
#
# Take $L$ layers of $W \times W$ without biases, and count the numbers that all $p$ devices together send in one step. With a ring, a sum of $n$ numbers costs $2(p - 1)\, n$.
#
# | cut | sends | numbers, divided by $2(p - 1)$ |
# |---|---|---|
# | data parallel | the gradients | $L\, W^2$ |
# | through the layers | a sum of $B \times W$ for each block of two layers, forward and back; none back into the data | $(L - 1)\, B\, W$ |
# | between the layers | $B \times W$ forward and back, at each of $p - 1$ cuts | $B\, W$ |
#
# So the three stand to each other as $\;W/B : (L - 1)/L : 1/L$. **Predict** before you look: a layer is 64 wide and the batch has 64 samples. Which cut sends most? And at $W = 1024$?
#
# We count, with two real ranks and the same model cut in each of the three ways. The function also checks that all three give the same gradients.

# %%
B, L, widths = 64, 8, (16, 32, 64, 128, 256)
both = launch(cuts.counted_each, 2, [(L, width, B) for width in widths])
sent = {way: [] for way in cuts.CUTS}
for of_each_rank in zip(*both, strict=True):
    for way in cuts.CUTS:
        sent[way].append(sum(traffic[way].bytes for traffic in of_each_rank))

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
fig, ax = plt.subplots()
labels_ = {"data": "data parallel", "tensor": "through the layers", "pipeline": "between the layers"}
fine = np.array([12, 1200])
for (way, label), colour, marker in zip(labels_.items(), figures.COLOURS, "os^", strict=False):
    ax.loglog(fine, [cuts.bytes_sent(way, L, w, B, 2, 8) / 1e6 for w in fine], color=colour, label=label)
    ax.loglog(widths, np.array(sent[way]) / 1e6, marker, color=colour)
ax.axvline(B, color=figures.GREY, ls="--", lw=1.2)
ax.text(B * 1.06, 0.013, "W = B", fontsize=9)
ax.set(xlabel="width W", ylabel="sent in a step (MB)")
ax.legend(fontsize=9)
figures.show(fig, alt="Bytes sent in a step against the width of the layers, both axes logarithmic, for two devices. Data "
             "parallel rises with slope two. The cut through the layers rises with slope one and crosses it "
             "where the width is about the batch size. The cut between the layers runs parallel to that, eight "
             "times lower or nearly so. Counted dots lie on the lines.")

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
for way in cuts.CUTS:
    assert sent[way] == [cuts.bytes_sent(way, L, width, B, 2, itemsize=8) for width in widths]
for p, width in itertools.product((2, 4, 8), (16, 64, 256)):
    data_, tensor, chain = (cuts.bytes_sent(way, L, width, B, p) for way in cuts.CUTS)
    assert data_ / chain == L * width / B and tensor / chain == L - 1
    assert (tensor < data_) == (width > B * (L - 1) / L)

# %% [markdown]
# The dots are counted, the lines are the formulas. The cut through the layers sends less than data parallelism when $W > B (L - 1) / L$, so roughly when a layer is wider than the batch is large. The cut between layers does when $L W > B$, which is nearly always.
#
# Bytes matter relative to work. A step is $6 L W^2 B$ operations (three products, each a multiplication and an addition for each weight and sample). Divide by the bytes of float32 that are sent: each byte is paid for by
#
# $$ \frac{3}{4(p - 1)} \times \begin{cases} B & \text{data parallel} \\ W \cdot L / (L - 1) & \text{through the layers} \\ L\, W & \text{between the layers} \end{cases} \quad \text{operations.} $$
#
# A device that computes $R$ operations in a second, on a link with $1/\beta$ bytes per second, needs about $R \beta$ operations a byte to be kept busy. Take 50 GFLOP/s and 1 GB/s, about a CPU core and a network of ten gigabits:

# %%
rate, beta = 50e9, 1e-9
rows = []
for width, batch in itertools.product((256, 4096), (64, 1024)):
    flops = 6 * L * width**2 * batch
    row = {"W": width, "B": batch, "needed": rate * beta}
    for way, label in labels_.items():
        row[label] = flops / cuts.bytes_sent(way, L, width, batch, p=4)
    rows.append(row)
notebook.table(rows, "Operations for each byte sent, 4 devices, 8 layers; and what is needed.")

# %% [markdown]
# Where a number is below what is needed, the link is the bottleneck, unless the sending is hidden behind other work. A wide layer helps the cuts of the model, a large batch helps data parallelism, and more devices help nothing.
#
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# {cite:t}`qiita2020day4`: model parallelism pays the more, the more parameters a model has.
#
# **We counted**, and it holds for models that are *wide*: there data parallelism sends $W/B$ times what a cut through the layers does, to within $(L-1)/L$, and that grows with the width. It does not hold for models that are *deep*: with more layers both send more, in the same proportion. For a cut between layers it holds for both. And a larger batch works against it.
#
# </div>
#
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# {cite:t}`qiita2020day4`: communication is the bottleneck of distributed training.
#
# **We computed**, from counted bytes: it depends on the cut and on two sizes. In the table, the same four devices on the same link have many times the operations for each byte that they need, or too few, depending on width, batch and cut. Where a cut between layers is slow, it is mostly for idle time, which a faster link does not mend.
#
# </div>
#
# Bytes are half of it. The other half is *messages*, and there the order turns around: a cut through the layers stops in every block for an all-reduce of $2(p - 1)$ messages that nothing hides, data parallelism once a step. This is why, in practice, layers are cut within one machine, chains between machines, and data over everything.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
for row in rows:
    factor = 3 / (4 * 3)
    ways = (row["B"], row["W"] * L / (L - 1), row["W"] * L)
    assert np.allclose([row[label] for label in labels_.values()], [factor * size for size in ways])
every = [row[label] / row["needed"] for row in rows for label in labels_.values()]
assert max(every) > 10 and min(every) < 1 / 2
assert all(traffic["tensor"].messages > traffic["pipeline"].messages for traffic in both[0])

# %% [markdown]
# ## Branches
#
# The cheapest cut of all is one that the model already has. If it splits into branches that do not talk, each device can take a branch, and nothing is sent until they join. AlexNet {cite:p}`krizhevsky2012` was built so, since one GPU's memory was too small: its channels form two *towers*, one on each of two GPUs, which meet in one convolution in the middle and in the dense layers. Today that is an argument of a layer, `groups=2`. Here is AlexNet's second convolution; each tower is a layer of its own:

# %%
torch.manual_seed(2)
conv = nn.Conv2d(96, 256, 5, padding=2, groups=2).double()
maps = torch.randn(2, 96, 27, 27).double()
towers = [tensor_parallel.branch(conv, index) for index in range(2)]
joined = torch.cat([t(half) for t, half in zip(towers, maps.chunk(2, 1), strict=True)], 1)
print("same bits as groups=2:", torch.equal(joined, conv(maps)))
whole = nn.Conv2d(96, 256, 5)
print(f"weights: {conv.weight.numel():,} in towers, {whole.weight.numel():,} without")

# %% [markdown]
# Nothing is sent, and half of the weights are gone. These are the weights between the towers, so something is lost. A task that shows it: two channels, one number each, and the class says whether their signs differ. Each tower sees one channel. **Predict:** what can they reach, if they meet only in a last layer that adds up?

# %%
points = torch.tensor([[a, b] for a in (-1.0, 1.0) for b in (-1.0, 1.0)])[:, :, None]
differ = (points.prod(dim=1) < 0).float()  # (4, 1)


def accuracy_of(groups, H=32):  # groups of the three layers
    torch.manual_seed(0)
    g1, g2, g3 = groups
    layers = nn.Conv1d(2, H, 1, groups=g1), nn.ReLU(), nn.Conv1d(H, H, 1, groups=g2)
    net = nn.Sequential(*layers, nn.ReLU(), nn.Conv1d(H, 1, 1, groups=g3), nn.Flatten())
    adam = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(300):
        adam.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(points), differ).backward()
        adam.step()
    return ((net(points) > 0) == differ.bool()).float().mean().item()

# %% [markdown]
# Three networks: towers that meet only in the sum at the end, towers that meet one layer earlier, and no towers.

# %%
reached = {
    "meet in the last sum": accuracy_of((2, 2, 1)),
    "meet one layer earlier": accuracy_of((2, 1, 1)),
    "no towers": accuracy_of((1, 1, 1)),
}
for name, share in reached.items():
    print(f"{name:22} {share:.0%}")

# %% [markdown]
# A sum $g(a) + h(b)$ cannot say whether two signs differ: no choice of $g$ and $h$ gets all four cases right. One meeting with a nonlinearity behind it is enough. That is why AlexNet's towers meet in the middle.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
assert torch.equal(joined, conv(maps)) and 2 * conv.weight.numel() == whole.weight.numel()
assert sum(w.numel() for tower in towers for w in tower.parameters()) == sum(w.numel() for w in conv.parameters())
assert reached["meet in the last sum"] <= 0.75  # adding up the four cases: g(a)+h(b) summed with signs is 0
assert reached["meet one layer earlier"] == reached["no towers"] == 1

# %% [markdown]
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# {cite:t}`qiita2020day4`: a model can be cut along its chain, which is hard, or by its branches, which is usual; afterwards the parts are merged.
#
# **Holds in part.** Branches are the easy cut: nothing is sent, and the bits are those of `groups=2`. But a model must have them, and pays for them in what it can express. A chain is harder: it takes a schedule and micro-batches, and even so some idle time. Today it is no less usual: large models are cut along the chain and through the layers at once.
#
# Merging is two different things. *Shards* of one model are put side by side, and the result has the same bits. *Replicas* that were trained apart can be averaged. That is the same as averaging gradients after exactly one plain step from the same start, and not after two, as the next cell shows.
#
# </div>

# %%
def descend(w, rows, steps, rate=0.1):  # least squares
    for _ in range(steps):
        w = w - rate * X[rows].T @ (X[rows] @ w - X[rows].sum(1) ** 2) / len(rows)
    return w


halves = np.arange(4).reshape(2, 2)  # two replicas, two samples each
for steps in (1, 2):
    averaged = np.mean([descend(np.zeros(4), half, steps) for half in halves], axis=0)
    together = descend(np.zeros(4), halves.ravel(), steps)
    print(f"{steps} step(s): they differ by {np.abs(averaged - together).max():.0e}")

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
apart = [np.abs(np.mean([descend(np.zeros(4), half, steps) for half in halves], axis=0)
                - descend(np.zeros(4), halves.ravel(), steps)).max() for steps in (1, 2)]
assert apart[0] < 1e-12 and apart[1] > 1e-3

# %% [markdown]
# ## In earnest
#
# What is above is small enough to read, and it is tested against what you should use instead: `torch.distributed.pipelining` (`PipelineStage` with `ScheduleGPipe`, `Schedule1F1B`, and zero-bubble schedules) and `torch.distributed.tensor.parallel.parallelize_module` (`ColwiseParallel`, `RowwiseParallel`). On the same batch they give the same losses and gradients.
#
# A script that calls `launch` runs unchanged on several machines, when `torchrun` starts it on each of them:
#
#     torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 script.py

# %% [markdown]
# ## Summary
#
# - A chain cut naively keeps one device at work. Micro-batches fill it, up to a bubble of $(p - 1)/(m + p - 1)$.
# - 1F1B has the same bubble as GPipe and keeps $\min(m, p - s)$ micro-batches in place of $m$. Zero-bubble schedules do the weights' gradients in the idle time.
# - Every device goes at the pace of the slowest stage: cut by cost.
# - A schedule is a list of instructions. A clock and a set of processes ran the same lists; the gradients are the unsplit model's.
# - A cut through two layers needs one all-reduce forward and one back. Bytes sent by data parallelism, by this cut and by a cut between layers stand as $W/B : (L - 1)/L : 1/L$.
# - Branches send nothing and give up the weights between them.

# %% [markdown]
# ## Exercises
#
# Each exercise has a stub to fill in, a check that says whether it is solved, and a hidden solution.
#
# ### Exercise 1: write 1F1B
#
# Without looking: in which order does stage $s$ of $p$ do its $m$ forward and $m$ backward passes? Yield pairs such as `("forward", 0)` and `("backward", 0)`; the check adds the messages.

# %% tags=["exercise"]
def my_order(stage, stages, microbatches):
    ...


# %% [markdown]
# The check wants GPipe's time and 1F1B's memory. First, what adds the messages:

# %%
def with_messages(order, s, p, m):
    for op, i in order(s, p, m):
        what, step = ("activation", 1) if op == "forward" else ("gradient", -1)
        if 0 <= s - step < p:
            yield Instruction("receive", i, what, s - step)
        yield Instruction(op, i)
        if 0 <= s + step < p:
            yield Instruction("send", i, what, s + step)


# %% [markdown]
# The check tries pipelines of several lengths, also with fewer micro-batches than stages.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(1)
def check_1(order):
    assert order(0, 2, 2) is not None, "the function returns nothing"
    for p, m in itertools.product((1, 2, 3, 5), (1, 2, 8)):
        def schedule(s, p, m):
            return with_messages(order, s, p, m)
        pipeline.check_schedule(schedule, p, m)
        found = simulator.simulate(schedule, p, m, TIMES)
        assert found.seconds == 3 * (m + p - 1), f"p={p}, m={m}: {found.seconds:g} s"
        assert found.live == [min(m, p - s) for s in range(p)], f"keeps {found.live}"


check_1(my_order)


# %% [markdown]
# A solution, for comparison:

# %% cellView="form" mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"]
# @title Solution 1
def my_order(stage, stages, microbatches):
    ahead = min(microbatches, stages - stage)
    yield from (("forward", i) for i in range(ahead))
    for i in range(microbatches):
        yield "backward", i
        if i + ahead < microbatches:
            yield "forward", i + ahead


check_1(my_order)


# %% [markdown]
# ### Exercise 2: balance uneven stages
#
# Given the costs of the layers and a number of parts, return the cost of the largest part in the best cut into consecutive parts.

# %% tags=["exercise"]
def largest_part(costs, parts):
    ...


# %% [markdown]
# The check compares with the package's cut, on random costs.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(2)
def check_2(solution):
    random = np.random.default_rng(0)
    for layers, parts in ((1, 1), (4, 2), (7, 3), (9, 9), (10, 4)):
        costs = random.integers(1, 20, layers).tolist()
        value = solution(costs, parts)
        assert value is not None, "the function returns nothing"
        ends = [0, *pipeline.balance(costs, parts)]
        best = max(sum(costs[a:b]) for a, b in itertools.pairwise(ends))
        assert value == best, f"{costs} in {parts}: {value}, and {best} can be had"


check_2(largest_part)


# %% [markdown]
# A solution, for comparison:

# %% cellView="form" mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"]
# @title Solution 2
def largest_part(costs, parts):
    best = np.inf
    for cut in itertools.combinations(range(1, len(costs)), parts - 1):
        ends = [0, *cut, len(costs)]
        best = min(best, max(sum(costs[a:b]) for a, b in itertools.pairwise(ends)))
    return best


check_2(largest_part)


# %% [markdown]
# ### Exercise 3: enough micro-batches
#
# How many micro-batches does a pipeline of $p$ equal stages need under 1F1B, so that at most the given share of the time is bubble? Return the least such number.

# %% tags=["exercise"]
def enough(p, share):
    ...


# %% [markdown]
# The check asks the simulator, with your number and with one less.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(3)
def check_3(solution):
    for p, share in ((2, 0.5), (4, 0.1), (8, 0.05), (3, 0.3), (1, 0.2)):
        m = solution(p, share)
        assert m is not None, "the function returns nothing"
        assert m >= 1 and m == int(m), f"p = {p}: {m} is no number of micro-batches"
        for number, enough_ in ((int(m), True), (int(m) - 1, False)):
            if number >= 1:
                found = simulator.simulate(schedules.one_f_one_b, p, number, TIMES)
                fits = 1 - found.busy <= share + 1e-9
                assert fits == enough_, f"p = {p}: {number} leaves {1 - found.busy:.1%}"


check_3(enough)


# %% [markdown]
# A solution, for comparison:

# %% cellView="form" mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"]
# @title Solution 3
def enough(p, share):  # (p − 1) / (m + p − 1) ≤ share
    return max(1, int(np.ceil((p - 1) * (1 - share) / share - 1e-9)))


check_3(enough)


# %% [markdown]
# ### Exercise 4: a narrow place
#
# Layers need not be equally wide. A chain of linear layers has the widths `[784, 512, 32, 512, 10]` between them. Return how many bytes a cut into two stages sends in a step of $B$ samples in float32, forward and back together, if it is made at the best place.

# %% tags=["exercise"]
def least_bytes(widths, B):
    ...


# %% [markdown]
# The check knows that neither the inputs nor the outputs of the whole chain are a place to cut.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(4)
def check_4(solution):
    for widths, B in (([784, 512, 32, 512, 10], 64), ([8, 16, 4], 3), ([2, 9, 7, 8, 2], 5)):
        value = solution(widths, B)
        assert value is not None, "the function returns nothing"
        sent = [width * B * 4 * 2 for width in widths[1:-1]]
        assert value in sent, f"{widths}: no cut sends {value} bytes"
        assert value == min(sent), f"{widths}: another cut sends {min(sent)}"


check_4(least_bytes)


# %% [markdown]
# A solution, for comparison:

# %% cellView="form" mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"]
# @title Solution 4
def least_bytes(widths, B):
    return 2 * 4 * B * min(widths[1:-1])


check_4(least_bytes)

# %% [markdown]
# ## References
#
# - {cite:t}`zhang2023`: three ways to split a network over devices.
# - {cite:t}`qiita2020day4`: data and model parallelism, and what each is good for.
# - {cite:t}`huang2019`, {cite:t}`narayanan2019`, {cite:t}`narayanan2021`: GPipe, and 1F1B with and without a flush.
# - {cite:t}`qi2024`: the zero-bubble schedules.
# - {cite:t}`shoeybi2019`: columns, rows, and the two functions.
# - {cite:t}`krizhevsky2012`: two towers on two GPUs.
