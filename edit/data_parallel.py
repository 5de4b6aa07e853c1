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
# # Data parallel
#
# **When two devices share a batch, what must they tell each other, and what does that cost?**
#
# A batch can be cut in two, and each half given to a device that has a copy of the network. Nothing is easier to say. What is easy to get wrong is the sentence after it: then the results are averaged. *Which* results? Errors, gradients and models can all be averaged, and only one of the three is always the same as training on the whole batch, and that only if one divides by the right number.
#
# So we begin with devices that are only pretended, where every number can be looked at. Then we do the same with processes that share no memory, count the bytes that they send, and hide the sending behind the computing.
#
# <div class="admonition note">
# <p class="admonition-title">Before you start</p>
#
# - **You will build** data-parallel training from scratch: first over a list of devices, then over processes with buckets of gradients that are summed while the backward pass still runs. It gives the same weights as one device, and as PyTorch's own.
# - **Time:** forty minutes to read; about a minute to run on two CPU cores.
# - **Device:** any. The devices here are CPU cores; the same code runs on GPUs.
# - **Know first:** what a gradient step is; from the chapter before this one, what a rank and an all-reduce are.
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
# The tools. `lenet` is the set of functions for a list of devices, `data_parallel` the one for processes, and `train` a script that uses it.

# %%
import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F

from ed_lib import data, figures, notebook, records, timing
from ed_lib.parallel import data_parallel, launch, lenet, train

# %% [markdown]
# The data is Fashion-MNIST: pictures of clothes in ten classes. `FEW` of its 60,000 training images are the **quick run** of this page; the recorded runs use them all.

# %%
FEW = 12_800
fashion = data.load("fashion-mnist")
x, y = lenet.tensors(fashion.train_images[:FEW], fashion.train_labels[:FEW])
test = lenet.tensors(fashion.test_images[:2000], fashion.test_labels[:2000])
print(f"images {tuple(x.shape)}, labels {tuple(y.shape)}, {fashion.name}")

# %% [markdown]
# ## One network, several devices
#
# | letter | meaning |
# |---|---|
# | $p$ | devices, or processes (*ranks*), that share a batch |
# | $B$ | samples in the whole batch, on all devices together |
# | $B_r$ | samples in the *shard* of device $r$; $\sum_r B_r = B$ |
# | $g_r$ | gradient of the loss *summed* over shard $r$ |
# | $n$ | bytes of all gradients of one network |
#
# This section builds what "Dive into Deep Learning" builds in its section 13.5 {cite:p}`zhang2023`, under the same names. The network is LeNet: two convolutions, two matrices.

# %%
notebook.source(lenet.lenet)

# %% [markdown]
# Where are its numbers? That will matter twice below, so look now.

# %%
params = lenet.init_params(seed=0)
names = [f"{kind}{layer}" for layer in (1, 2, 3, 4) for kind in "Wb"]
sizes = {name: p.numel() for name, p in zip(names, params, strict=True)}
print(*(f"{name} {size:,}" for name, size in sizes.items()), sep="   ")
total = sum(sizes.values())
print(f"{total:,} in all, {sizes['W3'] / total:.0%} of them in W3")

# %% [markdown]
# ### Copies
#
# A device is named by a string. `["cuda:0", "cuda:1"]` are two GPUs, `["cpu"] * 2` is one CPU that plays two devices. For the play to be honest each must have parameters of its own. PyTorch's `to` does not see to that: if a tensor is already where it should go, it returns the tensor itself.

# %%
copied = lenet.get_params(params, "cpu")
print("to('cpu') is the same tensor:", params[0].to("cpu") is params[0])
print("get_params shares memory:    ", copied[0].data_ptr() == params[0].data_ptr())
notebook.source(lenet.get_params)

# %% [markdown]
# ### Shards
#
# The batch is cut into $p$ parts. If $p$ does not divide $B$, some parts have one sample more. Nothing is left out, nothing is padded.

# %%
devices = ["cpu"] * 4
x_shards, y_shards = lenet.split_batch(x[:10], y[:10], devices)
print("10 samples on 4 devices:", [len(shard) for shard in x_shards])

# %% [markdown]
# ### The sum of all, for all
#
# The operation after which every device has the sum of what all had is called *all-reduce*. In one process it takes two loops: add up, hand out.

# %%
notebook.source(lenet.allreduce)

# %% [markdown]
# ### A step
#
# The loss of a batch is a sum over its samples, and so is its gradient. A sum can be formed in parts. With the whole batch's mean loss,
#
# $$ \nabla \Big( \frac1B \sum_{i=1}^{B} \ell_i \Big) = \frac1B \sum_{r=1}^{p} g_r, \qquad g_r = \nabla \sum_{i \in \text{shard } r} \ell_i . $$
#
# That is the whole method: each device forms the gradient of its shard's *sum*; one all-reduce adds these up; everyone divides by $B$, the size of the *whole* batch, and takes the same step from the same place. So the copies stay equal without ever being compared.

# %%
notebook.source(lenet.train_batch)


# %% [markdown]
# **Predict:** after three steps on batches of 11, 13 and 9 samples, how far are four devices from one that takes the whole batch? The reference is PyTorch's optimizer on mean losses. We compute in float64, and with a start eight times as large as the source's, since with that one next to nothing happens in three steps (more on this below).

# %%
awake = [8 * p.double() for p in params]
batches, start = [], 0
for size in (11, 13, 9):
    batches.append((x[start : start + size].double(), y[start : start + size]))
    start += size
whole = lenet.get_params(awake, "cpu")
optimizer = torch.optim.SGD(whole, lr=0.3)
for inputs, labels in batches:
    optimizer.zero_grad()
    F.cross_entropy(lenet.lenet(inputs, whole), labels).backward()
    optimizer.step()


# %% [markdown]
# And the same on one to four devices, with the largest difference in any weight of any copy:

# %%
def apart(some, others):
    pairs = zip(some, others, strict=True)
    return max((a - b).detach().abs().max().item() for a, b in pairs)


differences = {}
for p in (1, 2, 3, 4):
    copies = [lenet.get_params(awake, "cpu") for _ in range(p)]
    for inputs, labels in batches:
        lenet.train_batch(inputs, labels, copies, ["cpu"] * p, lr=0.3)
    differences[p] = max(apart(copy, whole) for copy in copies)
    print(f"{p} devices: {differences[p]:.0e}   (moved by {apart(copies[0], awake):.0e})")

# %% [markdown]
# Rounding, and nothing else. In float32 the rounding is larger, and it is all that can differ: sums are formed in another order.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
assert max(differences.values()) < 1e-12 and apart(whole, awake) > 1e-4
assert params[0].to("cpu") is params[0] and copied[0].data_ptr() != params[0].data_ptr()
assert sum(sizes.values()) == 129_068 and sizes["W3"] == 102_400
assert [len(s) for s in x_shards] == [3, 3, 2, 2] and torch.equal(torch.cat(x_shards), x[:10])

# %% [markdown]
# ## What may be averaged
#
# Three sentences sound like the method and are not.
#
# ### "Average the gradients"
#
# If each device takes the *mean* over its shard and the devices average their gradients, a sample in a small shard counts for more than one in a large shard. With even shards that is the same; the last batch of an epoch is often uneven. Here the worst case for nine samples on two devices: eight and one.

# %%
def gradient(rows):  # of the mean loss over these samples → (129068,)
    some = lenet.get_params(awake, "cpu")
    F.cross_entropy(lenet.lenet(x[rows].double(), some), y[rows]).backward()
    return torch.cat([p.grad.flatten() for p in some])


nine = gradient(slice(0, 9))
eight, one = gradient(slice(0, 8)), gradient(slice(8, 9))
of_means = ((eight + one) / 2 - nine).norm() / nine.norm()
weighted = ((8 * eight + 1 * one) / 9 - nine).norm() / nine.norm()
print(f"mean of the shards' means: off by {of_means:.0%} of the gradient")
print(f"weighted by shard size:    off by {weighted:.0e}")

# %% [markdown]
# PyTorch's `DistributedDataParallel` averages over the ranks. It is right if every rank has as many samples as the others, which its sampler makes so by giving some samples twice. With uneven shards the loss has to be scaled; we do that below.
#
# ### "Average the errors"
#
# Shorter still would be to average the *errors*, or the outputs' losses, and to send one number instead of a gradient. Take the smallest model there is, $y = w x$ with $w = 0$, and two samples on two devices: $x = 1$ should give $1$, and $x = -1$ should give $-1$. **Predict** what the average error teaches it.

# %%
inputs, targets, w = np.array([1.0, -1.0]), np.array([1.0, -1.0]), 0.0
errors = targets - w * inputs  # (2,), one on each device
print("average error × average input: ", errors.mean() * inputs.mean())
print("average of error × input:      ", (errors * inputs).mean())

# %% [markdown]
# Nothing at all. Both devices are wrong, in opposite directions; their average error is zero, and so is any step that is made of it. The gradients agree: $w$ should grow. A gradient is a *product* of error and input, and the average of products is not the product of averages. (One may average the *losses* and differentiate afterwards, if the graph spans all devices. But then it is gradients that travel back.)
#
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# **The article of day 4** {cite:p}`qiita2020` describes synchronous data parallelism as waiting for all workers and averaging their errors.
#
# **We found** a model for which the average error is zero while the gradient is not. What has to be averaged is the gradient, weighted by the shards' sizes; read in that way, the sentence holds.
#
# </div>
#
# ### "Average the models"
#
# And if each device takes a step by itself, and the *weights* are averaged? A step of plain gradient descent is linear in the gradient, so for **one** step this is the same. For two it is not: the second gradient is taken at different places.

# %%
def steps_apart(steps):  # even shards: 8 and 8 of a batch of 16
    lone, joint = ([lenet.get_params(awake, "cpu") for _ in range(2)] for _ in range(2))
    for step in range(steps):
        rows = slice(16 * step, 16 * step + 16)
        inputs, labels = x[rows].double(), y[rows]
        lenet.train_batch(inputs, labels, joint, ["cpu"] * 2, lr=0.3)
        for mine, part in zip(lone, (slice(0, 8), slice(8, 16)), strict=True):
            lenet.train_batch(inputs[part], labels[part], [mine], ["cpu"], lr=0.3)
    return apart([(a + b) / 2 for a, b in zip(*lone, strict=True)], joint[0])


after = {steps: steps_apart(steps) for steps in (1, 2, 5)}
print(*(f"after {steps} step(s): {gap:.0e}" for steps, gap in after.items()), sep="\n")

# %% [markdown]
# With momentum the same holds, as long as the devices' momenta are averaged too; with Adam, which divides by the size of the gradient, not even the first step agrees. (Averaging models now and then is a method of its own, since it sends so much less. It is another method.)

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
assert of_means > 0.05 and weighted < 1e-12
assert errors.mean() * inputs.mean() == 0 and (errors * inputs).mean() == 1
assert after[1] < 1e-14 and after[2] > 1e-4 and after[5] > 1e-4

# %% [markdown]
# ## A run, and its plateau
#
# `lenet.train` is the loop around it: epochs of shuffled batches, a test after each. A learning rate may be a number or a function of the step.

# %%
notebook.source(lenet.train)

# %% [markdown]
# The source's helper functions work here too, where d2l is installed. Its `sgd` divides by the batch size it is given, and sets the gradients to zero: right for a summed loss. Its accuracy agrees with ours.

# %%
try:
    from d2l import torch as d2l
except Exception:  # it is missing, or its torchvision does not fit this torch
    d2l = None
net = lenet.get_params(awake, "cpu")
ours = lenet.accuracy(test[0].double(), test[1], [net] * 3, ["cpu"] * 3)
if d2l is None:
    print(f"d2l is not installed here; ours: {ours}")
else:
    pairs = zip(test[0].double().split(256), test[1].split(256), strict=True)
    theirs = d2l.evaluate_accuracy_gpu(lambda images: lenet.lenet(images, net), pairs)
    print(f"untrained, on three devices: ours {ours}, d2l's on one {theirs}")

# %% [markdown]
# Now the question that the source leaves as an exercise. With $p$ devices one can afford a batch $p$ times as large. What should the learning rate be? Four runs see the same images: one device with 16 images in a step; two with 32, at the same rate; two with 32, at twice the rate; and four with 64, at four times the rate. **Predict** their order at the end.

# %%
passes = max(1, FEW // len(x))
runs = {}
for name, p, lr in (("1 device", 1, 0.2), ("2 devices", 2, 0.2),
                    ("2 devices, rate × 2", 2, 0.4), ("4 devices, rate × 4", 4, 0.8)):
    runs[name] = lenet.train(["cpu"] * p, 16 * p, lr, passes, x, y, test)
    print(f"{name:20} {runs[name].accuracy[-1]:4.0%} of the test images right")

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(5.7, 3.3), sharey=True)
for (name, run), size, colour in zip(runs.items(), (16, 32, 32, 64), figures.COLOURS, strict=False):
    loss = np.convolve(run.loss, np.ones(10) / 10, "valid")  # of ten steps
    steps = np.arange(10, len(run.loss) + 1)
    axes[0].plot(steps, loss, color=colour, label=name, lw=1.5)
    axes[1].plot(steps * size / 1000, loss, color=colour, lw=1.5)
axes[0].set(xlabel="steps", ylabel="training loss, mean of ten steps", xlim=(0, 800))
axes[1].set(xlabel="thousands of images seen")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8.5)
figures.show(fig, alt="Training loss of four runs, against steps and against images seen. Each stays flat at 2.3 first and then "
             "falls. Against steps, one device and two devices at the same rate leave the plateau together, the run "
             "with twice the rate after about half the steps, the one with four times the rate after a quarter, and "
             "that one returns to 2.3 and stays there. Against images, all but the run of two devices at the same "
             "rate leave together, and that one takes twice as long.")


# %% [markdown]
# Each run first learns nothing for a long while. The loss is $\ln 10$: ten classes, all equally likely. The reason is the start, weights of $\mathcal N(0, 0.01^2)$. Four such layers one behind another make an output that hardly depends on the image, and, going back, a gradient that hardly depends on anything: each layer's is a product with the small weights of the others. Here is how weak the signal gets.

# %%
with torch.no_grad():
    scores = lenet.lenet(x[:1000], params)  # (1000, 10)
print(f"standard deviation of a score over the images: {scores.std(dim=0).mean():.0e}")


# %% [markdown]
# Near such a start all images look alike, so a larger batch says nothing new, and what counts is how *often* one steps and how *far*. In small steps the way off the plateau is a path that is followed at a speed set by the rate: the number of steps is inversely proportional to the rate, whatever the batch. In the left panel the two runs with the same rate leave together, although one has seen twice the images. In the right panel it is those with the same rate *per image*.
#
# That is the case for the rule of {cite:t}`goyal2017`: **with $p$ times the batch, $p$ times the rate**. The fourth run shows where it ends. It leaves the plateau as early as the rule says. But off the plateau the loss is steep, four times the rate is too far for one step, and the run is thrown to a place from which there is no way back: the loss is at $\ln 10$ again, and stays. For most networks the first steps are the dangerous ones. Hence their *warm-up*, in which the rate grows over the first epochs.

# %%
def left(run):  # the step at which the plateau was left
    return int((np.array(run.loss) < 2.2).argmax()) if min(run.loss) < 2.2 else None


lefts = {name: left(run) for name, run in runs.items()}
print(lefts)

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
assert scores.std(dim=0).mean() < 1e-3
assert all(abs(run.loss[0] - np.log(10)) < 0.01 for run in runs.values())
if fashion.name == "Fashion-MNIST":
    one_device, same_rate, twice, four_times = lefts.values()
    assert 0.7 < one_device / same_rate < 1.4 < same_rate / twice < 2.6 < same_rate / four_times < 5
    last = {name: run.accuracy[-1] for name, run in runs.items()}
    assert last["1 device"] > last["2 devices"] and last["2 devices, rate × 2"] > last["2 devices"]
    assert last["4 devices, rate × 4"] < 0.2 and np.mean(runs["4 devices, rate × 4"].loss[-10:]) > 2.2

# %% [markdown]
# ## Processes
#
# So far one process played all devices. For real work there is a process for each, with memory of its own, and the sum has to travel. `launch` starts them, as the chapter before this one showed. Three things change.
#
# **The start.** Each process builds its own network. Rank 0's weights are broadcast, so that nobody depends on equal seeds. If the ranks' networks differ in a shape or a dtype, all of them say so at once; nobody waits for a message that never comes.
#
# **The pieces.** The naive way is one all-reduce for each parameter, after the backward pass. Eight parameters, eight times the latency, and some of them are ten numbers long. So gradients are laid side by side in *buckets*: one flat array, of which each parameter's `grad` is a view. Nothing is copied into it; autograd writes there.
#
# **The time.** The backward pass computes the last layer's gradient first. Once a bucket is full, its sum can start, while the backward pass goes on to the layers before it.

# %%
notebook.source(data_parallel.Replica)

# %% [markdown]
# The order matters: a sum over all ranks takes place only when all are in it, so all must start the buckets in the same order, or two ranks wait for each other for ever. A bucket that is complete too early waits for its turn; and one that is never complete, because a parameter had no part in this rank's loss, is started by `finish`. This is how PyTorch's own `DistributedDataParallel` works {cite:p}`li2020`.
#
# The cells that follow write the functions for the ranks into a file, since another process cannot import a function from a cell. (The magic in their first line keeps the second one quiet.) First a training step in three ways.

# %%
folder = tempfile.mkdtemp()
sys.path.insert(0, folder)

# %% [markdown]
# The naive way, buckets, and PyTorch's `DistributedDataParallel`. Since the last averages over the ranks, its loss is scaled by $p/B$; the others divide the sum by $B$.

# %%
# %%capture
# %%writefile {folder}/ranks.py
import time
import torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from ed_lib.parallel import lenet
from ed_lib.parallel.data_parallel import Replica, Traced, reduce_each, shard

def step(how, net, x, y, size=2**18):  # → bytes and all-reduces; each rank has its shard
    net = {"naive": lambda net: net, "buckets": lambda net: Replica(net, size),
           "DDP": DistributedDataParallel}[how](net)
    scale = dist.get_world_size() / len(x) if how == "DDP" else 1
    (scale * F.cross_entropy(net(shard(x)), shard(y), reduction="sum")).backward()
    if how == "buckets":
        net.finish(len(x))
        return net.bytes, net.calls
    return reduce_each(net.parameters(), len(x)) if how == "naive" else None

# %% [markdown]
# Then what each rank is to do: with each way, a step from the same start on a batch of eleven samples, and, for the figure below, some steps with a clock. Rank 1 builds its network from another seed, which the broadcast must mend.

# %%
# %%capture
# %%writefile -a {folder}/ranks.py

def compare(weights, x, y):  # → {way: (gradients, what was counted)}
    found = {}
    for how in ("naive", "buckets", "DDP"):
        net = lenet.LeNet(seed=dist.get_rank(), dtype=x.dtype)
        if how == "naive" or dist.get_rank() == 0:  # the others broadcast it themselves
            net.load_state_dict(weights)
        counted = step(how, net, x, y)
        found[how] = [p.grad.clone() for p in net.parameters()], counted
    return found

# %% [markdown]
# The clock: seconds from the start of a step until the forward pass, the backward pass and the sums were done. `Traced` is a `Replica` that writes down when each sum was started and when it was done.

# %%
# %%capture
# %%writefile -a {folder}/ranks.py

def timeline(x, y, steps):  # → one dict of seconds for each step
    net, found = Traced(lenet.LeNet(), 2**18), []
    for _ in range(steps):
        net.zero_grad()
        dist.barrier()
        t = [time.perf_counter()]
        loss = F.cross_entropy(net(shard(x)), shard(y), reduction="sum")
        t.append(time.perf_counter())
        loss.backward(); t.append(time.perf_counter())
        net.finish(len(x)); t.append(time.perf_counter())
        found.append({"steps": t, "sums": net.summed})
    return found


# %% [markdown]
# One launch does both. **Predict**: how many all-reduces does each way need for LeNet, and which sends more bytes?

# %%
# %%capture
# %%writefile -a {folder}/ranks.py

def everything(weights, x, y, images, labels):
    return compare(weights, x, y), timeline(images, labels, 15)

# %% [markdown]
# Back in the notebook:

# %%
import ranks

weights = {f"params.{n}": p.detach() for n, p in enumerate(awake)}
eleven = x[:11].double(), y[:11]
results = launch(ranks.everything, 2, weights, *eleven, x[:256], y[:256])
found = [compared for compared, _ in results]

# %% mystnb={"code_prompt_show": "Show the code of the table"} tags=["hide-input"]
whole = lenet.get_params(awake, "cpu")
F.cross_entropy(lenet.lenet(eleven[0], whole), eleven[1]).backward()
reference = [p.grad for p in whole]
n = 8 * total  # bytes, in float64
sent, calls = found[0]["buckets"][1]
naive = found[0]["naive"][1]
rows = [{"way": how, "all-reduces": number, "bytes summed": count, "off by": f"{max(apart(r[how][0], reference) for r in found):.0e}"}
        for how, number, count in (("naive", len(params), f"{n:,}"), ("buckets", calls, f"{sent:,}"), ("DDP", "not counted", "not counted"))]
notebook.table(rows, "One step on eleven samples by two ranks, against the whole batch on one device, in float64.")
print(f"messages that rank 0 sent, naively: {naive.messages}; bytes: {naive.bytes:,}")

# %% [markdown]
# All three are the large batch. The naive way and the buckets sum the same bytes: buckets do not make the message smaller, they make fewer messages of it.
#
# How many bytes travel? A ring of $p$ ranks sends every number $2(p-1)$ times in all, so each rank sends
#
# $$ \frac{2(p-1)}{p}\, n $$
#
# bytes, which for two ranks is $n$, and never reaches $2n$, however many ranks there are. The naive way's sums went through the book's own ring, which counts; the count is exact. Note what is *not* in the formula: the batch. So data parallelism pays for many samples and few parameters.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
for result in found:
    for how, (gradients, _) in result.items():
        assert apart(gradients, reference) < 1e-14, how
        assert all(torch.equal(a, b) for a, b in zip(gradients, found[0][how][0], strict=True))
assert (sent, calls) == (n, 3) and sum(r["naive"][1].bytes for r in found) == 2 * (2 - 1) * n
assert naive.bytes == 2 * (2 - 1) / 2 * n and naive.messages == 2 * (2 - 1) * 8

# %% [markdown]
# ### What is hidden
#
# The figure shows one step of each rank, by its own clock: the forward pass, the backward pass, and the sums of the three buckets. Of the 15 steps it is the one of median length.

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
lengths = [step["steps"][-1] - step["steps"][0] for step in results[0][1]]
middle = int(np.argsort(lengths)[len(lengths) // 2])
held = [[p.numel() for p in bucket] for bucket in data_parallel._grouped(params[::-1], train.BUCKET_BYTES)]
fig, axes = plt.subplots(2, 1, figsize=(5.7, 3.6), sharex=True)
for rank, (ax, (_, steps)) in enumerate(zip(axes, results, strict=True)):
    t, sums = (1e3 * (np.array(steps[middle][key], float) - steps[middle]["steps"][0]) for key in ("steps", "sums"))
    for begin, end, colour in zip(t[:2], t[1:3], (figures.GREY, figures.BLUE), strict=True):
        ax.barh(0, end - begin, left=begin, height=0.6, color=colour)
    for number, (begin, end) in enumerate(sums):
        ax.barh(number + 1, max(end - begin, 0.15), left=begin, height=0.6, color=figures.ORANGE)
    ax.axvline(t[3], color=figures.PINK, lw=1.2)
    labels = [f"sum of {4 * sum(b) / 1000:.0f} kB" for b in held]
    ax.set(yticks=range(4), yticklabels=["forward, backward", *labels], title=f"rank {rank}", ylim=(3.6, -0.6))
    ax.tick_params(axis="y", labelsize=9)
axes[1].set_xlabel("milliseconds since the start of the step")
figures.show(fig, alt="A time line for each of two ranks. A grey bar, the forward pass, is followed by a blue one, the backward "
             "pass. Two of the three sums, the largest among them, start early in the backward pass, and the third, of "
             "the convolutions' gradients, at its end. A line marks the end of the step.")

# %% [markdown]
# The matrices come last in the network, and so first in the backward pass, and they hold four fifths of the bytes. Their sums start at its beginning, and the backward pass of the convolutions, which takes most of the time, runs meanwhile. Only the last bucket cannot be hidden: nothing is left to compute. LeNet suits this well. A network whose first layer is its largest would not.
#
# Two honest remarks. Each rank's process has its own clock, but on one machine these are the same. And on a CPU nothing is free: summing takes a core that could have computed. On GPUs the sum is done by a few of many processors and a link that the backward pass does not use, and hiding saves more.
#
# How do the ways compare? This is a question for many repetitions on a quiet machine, so it is answered by the record.

# %% mystnb={"code_prompt_show": "Show the code of the table"} tags=["hide-input"]
measured = [record for record in records.load("parallel") if record.select(table="data parallel step")]
for record in measured:
    steps = record.select(table="data parallel step")
    ddp = next(row for row in steps if row.case["way"] == "DDP").completion.median
    rows = [{"way of summing": row.case["way"], "a step": timing.text(row.completion.median),
             "quartiles": f"{timing.text(row.completion.q1)} – {timing.text(row.completion.q3)}",
             "against DDP": row.completion.median / ddp} for row in steps]
    ranks_, batch = steps[0].case["ranks"], steps[0].case["batch"]
    notebook.table(rows, f"A training step of LeNet by {ranks_} ranks, batch of {batch}, in turns in one launch. {record.label}")
if not measured:
    print("No run at full size has been recorded yet; none is estimated.")

# %% [markdown]
# ## One script, three ways to start it
#
# `ed_lib.parallel.train` trains LeNet in this way. What each rank does is an ordinary training loop; `shard` and `finish` are what is new in it.

# %%
notebook.source(train.train)
notebook.source(train.step)

# %% [markdown]
# It is started from a shell, by `python -m ed_lib.parallel.train --ranks 2`; or by PyTorch's launcher, which on one machine reads
#
# ```bash
# torchrun --standalone --nproc-per-node 2 -m ed_lib.parallel.train --ranks 2
# ```
#
# and on several machines, say two with eight GPUs each, is the same command on each of them, with the address of one:
#
# ```bash
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
#     -m ed_lib.parallel.train --ranks 16 --backend nccl
# ```
#
# (That one was not run for this page.) Or it is started from a notebook, as here: a shorter version of the source's run, with batches of 64 so that a page has time for enough steps.

# %%
rest = len(x), 0, fashion.source == "scikit-learn"  # images, seed, offline
alone = launch(train.train, 1, 64, 0.4, 1, *rest)[0]  # one epoch
pair = launch(train.train, 2, 64, 0.4, 2, *rest)  # two
train.report(pair)
print(f"one process: epoch 1: loss {alone['loss'][0]:.4f}, {alone['seconds'][0]:.2f} s")

# %% [markdown]
# The last line of the report is the SHA-256 of all weights: one hash, so both ranks ended with the same bits. The book's tests start the script in all three ways, and compare these hashes: they are equal too.
#
# One process and two have *not* the same bits, and their first losses may differ in the second digit already. How can that be, if each step is the same to rounding? A plateau is an unstable place: on the way off it every small difference grows, that between two classes and that between two orders of summing. Here is the run with two devices and twice the rate from above, beside the same on one device.

# %%
one = lenet.train(["cpu"], 32, 0.4, passes, x, y, test)
two = runs["2 devices, rate × 2"]
gap = np.abs(np.array(one.loss) - np.array(two.loss))
shown = (0, 50, 100, 150, 200, 300)
print(*(f"step {step:3}: the losses differ by {gap[step]:.0e}" for step in shown), sep="\n")

# %% [markdown]
# So "equal to rounding" is said of a step, and must be tested on a few steps, in float64. Two runs that are equal in that sense end as far apart as two seeds do, and only accuracies over several seeds can be compared.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
assert gap[0] < 1e-5 and (fashion.name != "Fashion-MNIST" or gap[150:].max() > 100 * gap[:50].max())
assert len({result["sha256"] for result in pair}) == 1
assert abs(pair[0]["loss"][0] - alone["loss"][0]) < 0.1
assert sum(result["samples"] for result in pair) == 2 * alone["samples"] == 2 * len(x)
if fashion.name == "Fashion-MNIST":
    assert pair[0]["accuracy"][-1] > 0.25

# %% [markdown]
# ### The source's run
#
# At full size: 60,000 images, batch 256, rate 0.2, ten epochs. *Processes* are ranks with one thread each; *simulated* are two devices in one process with one thread.

# %% mystnb={"code_prompt_show": "Show the code of the table"} tags=["hide-input"]
full = [record for record in records.load("parallel") if record.select(table="source")]
for record in full:
    rows = [{"devices": row.case["devices"], "how": row.case["how"], "seconds an epoch": row.completion.median,
             "test accuracy by seed": ", ".join(f"{value:.3f}" for value in row.results["accuracy"])}
            for row in record.select(table="source")]
    notebook.table(rows, f"The source's run. {record.label}. The source: 0.82 in 3.7 s on one GPU, 0.82 in 3.8 s on two.")
if not full:
    print("No run at full size has been recorded yet; none is estimated.")

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
for record in full[:1]:
    fig, ax = plt.subplots()
    for row, colour in zip(record.select(table="source"), figures.COLOURS, strict=False):
        curve = 100 * np.array(row.results["curve"])  # (seeds, epochs)
        along = np.arange(1, curve.shape[1] + 1)
        ax.plot(along, curve.mean(axis=0), color=colour, marker="o", ms=4, label=f"{row.case['devices']}, {row.case['how']}")
        ax.fill_between(along, curve.min(axis=0), curve.max(axis=0), color=colour, alpha=0.2, lw=0)
    ax.axhline(82, color=figures.GREY, ls="--", lw=1.2, label="the source's last value")
    ax.set(xlabel="epoch", ylabel="test images right (%)")
    ax.legend(fontsize=9)
    figures.show(fig, alt="Test accuracy by epoch for one device, two processes and two simulated devices, with the spread over "
                 "the seeds. The three curves lie on top of each other.")

# %% [markdown]
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# **{cite:t}`zhang2023`** reach an accuracy of 0.82 in 3.7 s an epoch with one GPU and 0.82 in 3.8 s with two: no gain in time. They say why, too: the network is small, and the work of one step is hardly worth the sum.
#
# **We measured** that a step on two devices is the step on one, to rounding, in float64 to twelve digits. What their runs come to, in accuracy and seconds, is in the table, as far as it has been recorded. A step's work is larger here, beside the same sum: a CPU core computes far more slowly than a GPU.
#
# Three details of their code, for whoever runs it without GPUs. `get_params` makes no copy if a tensor is already on the device, so two simulated devices would share their weights. `split_batch` in the package needs GPUs. And the MXNet version that stands beside the PyTorch one belongs to a framework that was retired in 2023.
#
# </div>
#
# ## A larger batch, at full size
#
# The recorded runs repeat the experiment with the plateau at full length: on $p$ devices a batch of $256\,p$, with the rate fixed at 0.2, scaled to $0.2\,p$, or warmed up to it over two epochs. The devices are simulated: what is asked is what is learned, not how fast.

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
scaled = [record for record in records.load("parallel") if record.select(table="scaling")]
for record in scaled[:1]:
    fig, ax = plt.subplots()
    base = record.find(table="scaling", devices=1)
    for policy, colour, marker in zip(("fixed", "linear", "warm-up"), figures.COLOURS, "os^", strict=False):
        found_ = [base, *(row for row in record.select(table="scaling", policy=policy) if row.case["devices"] > 1)]
        values = 100 * np.array([row.results["accuracy"] for row in found_])  # (sizes, seeds)
        along = [row.case["devices"] for row in found_]
        ax.plot(along, values.mean(axis=1), color=colour, marker=marker, label=f"rate {policy}")
        ax.fill_between(along, values.min(axis=1), values.max(axis=1), color=colour, alpha=0.2, lw=0)
    ax.set(xscale="log", xlabel="devices, each with a batch of 256", ylabel=f"test images right after {base.case['epochs']} epochs (%)")
    ax.set_xticks(along, along)
    ax.set_xticks([], minor=True)
    ax.legend(fontsize=9)
    figures.show(fig, alt="Test accuracy after the same number of epochs against the number of devices, for a fixed rate, a rate "
                 "scaled with the devices, and a scaled rate with warm-up, with the spread over the seeds.")
if not scaled:
    print("No run at full size has been recorded yet; none is estimated.")


# %% [markdown]
# ## Sharing the sum itself
#
# The source's second exercise asks for a better all-reduce. In `allreduce` the first device does all the adding. An idea that suggests itself: make each device responsible for some *parameters*, and let it add those up. **Predict** how much faster that can be with eight devices and LeNet's eight parameters.

# %%
def spread(sizes, p):  # the largest first, to whoever has least → numbers for each device
    loads = [0] * p
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return loads


for p in (2, 4, 8):
    most, even = max(spread(sizes.values(), p)), -(-total // p)
    print(f"{p} devices: whole tensors {total / most:.2f}×, a flat array {total / even:.2f}×")

# %% [markdown]
# One tensor holds four fifths of the network, and its owner is as busy as before: 1.26 times is the end, whatever the number of devices. Laid flat and cut anywhere, the load is even. That is what a ring does, and one more reason for flat buckets.
#
# ## How good is it, exactly?
#
# The third exercise asks for the test accuracy over several devices. Each counts on its shard. What may be averaged here? The counts may be added: two integers, right and total. The *rates* may not be averaged, for the reason that means may not. And a sampler that pads the shards to equal length counts some images twice.

# %%
trained = runs["1 device"].params
rows = slice(0, 1001)
shards = [test[0][rows][:800], test[0][rows][800:]], [test[1][rows][:800], test[1][rows][800:]]
counts = [int(lenet.correct(lambda images: lenet.lenet(images, trained), *s)) for s in zip(*shards, strict=True)]
lengths = [len(labels) for labels in shards[1]]
exact = sum(counts) / sum(lengths)
of_rates = np.mean([c / n for c, n in zip(counts, lengths, strict=True)])
print(f"right: {counts} of {lengths}: {exact:.5f}; mean of the rates: {of_rates:.5f}")

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
limits = {p: total / max(spread(sizes.values(), p)) for p in (2, 4, 8)}
assert all(round(limit, 2) == 1.26 for limit in limits.values())
whole_accuracy = lenet.accuracy(test[0][rows], test[1][rows], [trained], ["cpu"])
assert exact == whole_accuracy

# %% [markdown]
# ## Summary
#
# - The gradient of a batch is a sum over its samples, so it can be formed in shards: sum the shards' gradients of *summed* losses, divide by the *whole* batch. That equals one device, to rounding.
# - Means over uneven shards, errors, and models after more than one step may not be averaged in its place.
# - Each rank sends $2(p-1)/p \cdot n$ bytes a step, whatever the batch. Buckets make few messages of the same bytes.
# - A bucket can be summed while the backward pass goes on; what cannot be hidden is the last one. All ranks must start buckets in one order.
# - On the plateau of a small start what counts is steps times rate, whatever the batch: $p$ times the batch wants $p$ times the rate, with a warm-up where that is too much at once.
# - Accuracy over devices is the sum of right answers over the sum of samples: integers, divided once.
#
# ## Exercises
#
# Each exercise has a stub to fill in, a check that says whether it is solved, and a hidden solution.
#
# ### Exercise 1: whose rows?
#
# Rank $r$ of $p$ must find its rows of a batch of $B$ without asking anybody. Return the first row and the one after the last, so that the shards are cut as `tensor_split` does it: the first $B \bmod p$ shards have one row more. Some may be empty.

# %% tags=["exercise"]
def my_rows(B, r, p):  # → first, end
    ...


# %% [markdown]
# The check tries all sizes up to twenty.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(1)
def check_1(solution):
    for B in range(21):
        for p in (1, 2, 3, 7):
            wanted = torch.arange(B).tensor_split(p)
            for r in range(p):
                found = solution(B, r, p)
                assert found is not None, "the function returns nothing"
                got = list(range(*found))
                assert got == wanted[r].tolist(), f"{B} rows, rank {r} of {p}: {got}"


check_1(my_rows)


# %% [markdown]
# A solution, for comparison:

# %% cellView="form" mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"]
# @title Solution 1
def my_rows(B, r, p):
    each, more = divmod(B, p)
    first = r * each + min(r, more)
    return first, first + each + (r < more)


check_1(my_rows)


# %% [markdown]
# ### Exercise 2: mend the mean of means
#
# A library hands you, for each device, the gradient of its shard's *mean* loss, and the number of samples in it. Return the gradient of the whole batch's mean loss. An empty shard has a gradient of zeros.

# %% tags=["exercise"]
def whole_gradient(means, counts):  # list of tensors, list of numbers → tensor
    ...


# %% [markdown]
# The check compares it with autograd on the whole batch.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(2)
def check_2(solution):
    counts = [5, 1, 3, 0]
    parts = [gradient(slice(*rows)) for rows in ((0, 5), (5, 6), (6, 9))]
    value = solution([*parts, torch.zeros_like(nine)], counts)
    assert value is not None, "the function returns nothing"
    off = float((value - nine).norm() / nine.norm())
    assert off < 1e-10, "it is not the gradient of the whole batch"


check_2(whole_gradient)


# %% [markdown]
# A solution, for comparison:

# %% cellView="form" mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"]
# @title Solution 2
def whole_gradient(means, counts):
    weighted = sum(count * mean for count, mean in zip(counts, means, strict=True))
    return weighted / sum(counts)


check_2(whole_gradient)


# %% [markdown]
# ### Exercise 3: cut into buckets
#
# Given the sizes of the gradients in the order in which the backward pass computes them, and the capacity of a bucket, return the buckets as lists of sizes. A bucket is closed when the next gradient does not fit; a gradient larger than the capacity gets a bucket for itself.

# %% tags=["exercise"]
def buckets(sizes, capacity):  # → list of lists
    ...


# %% [markdown]
# The check uses LeNet, and random sizes.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(3)
def check_3(solution):
    random = np.random.default_rng(0)
    cases = [([4 * p.numel() for p in params[::-1]], 2**18)]
    cases += [(random.integers(1, 9, 12).tolist(), capacity) for capacity in (1, 7, 20, 99)]
    for lengths, capacity in cases:
        tensors = [torch.zeros(n, dtype=torch.uint8) for n in lengths]
        wanted = data_parallel._grouped(tensors, capacity)
        value = solution(lengths, capacity)
        assert value is not None, "the function returns nothing"
        assert value == [[len(t) for t in group] for group in wanted], f"capacity {capacity}"


check_3(buckets)


# %% [markdown]
# A solution, for comparison:

# %% cellView="form" mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"]
# @title Solution 3
def buckets(sizes, capacity):
    found = []
    for size in sizes:
        if found and sum(found[-1]) + size <= capacity:
            found[-1].append(size)
        else:
            found.append([size])
    return found


check_3(buckets)


# %% [markdown]
# ### Exercise 4: warm up
#
# Return the rate of a step (counted from 0) that grows in a straight line from `base` at step 0 to `p * base` at step `steps`, and stays there.

# %% tags=["exercise"]
def warm_up(step, base, p, steps):  # → rate
    ...


# %% [markdown]
# The check looks at the start, the way and the end.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(4)
def check_4(solution):
    found = [solution(step, 0.2, 4, 10) for step in (0, 5, 10, 500)]
    assert None not in found, "the function returns nothing"
    assert np.allclose(found, (0.2, 0.5, 0.8, 0.8)), f"at 0, 5, 10, 500: {found}"


check_4(warm_up)


# %% [markdown]
# A solution, for comparison:

# %% cellView="form" mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"]
# @title Solution 4
def warm_up(step, base, p, steps):
    return base * (1 + (p - 1) * min(1, step / steps))


check_4(warm_up)

# %% [markdown]
# ## References
#
# - {cite:t}`zhang2023`: the section that the first half follows.
# - {cite:t}`qiita2020`: the article that this part of the book starts from.
# - {cite:t}`li2020`: how PyTorch's `DistributedDataParallel` works.
# - {cite:t}`goyal2017`: the learning rate for large batches, and warm-up.
