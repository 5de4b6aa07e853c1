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
# # Asynchronous
#
# **What is gained when no worker waits for another, and what is paid?**
#
# The chapter before this one adds up the gradients of all workers before anyone goes on. That is exact, and it has a weak spot: a step takes as long as its slowest worker. So why not let each worker go on as soon as it has finished? Nobody waits, and no time is lost. But then a gradient arrives at parameters that have moved since it was computed. It is *stale*.
#
# How stale can be counted, and what that does to learning can be computed in one case and measured in others. We do all of this first on a clock that we make up, where every event can be followed, and then with real processes, one of which gets killed.
#
# <div class="admonition note">
# <p class="admonition-title">Before you start</p>
#
# - **You will build** a parameter server that knows how old each gradient is; a simulation of even and uneven workers; a queue of models; real workers that may die without a gradient being lost or applied twice; and training in shared memory without locks.
# - **Time:** forty minutes to read; about a minute to run on two CPU cores.
# - **Device:** any. The workers are processes on a CPU, and where speed is the subject they sleep in place of computing: that shows what waiting costs, not how fast a machine is.
# - **Know first:** the chapter on data parallelism; what stochastic gradient descent is.
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
# The tools. `asynchronous` holds the servers; `virtual` and `workers` run them, on a made-up clock and in real processes.

# %%
import multiprocessing
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import torch

from ed_lib import data, figures, notebook, records
from ed_lib.parallel import asynchronous, hogwild, workers
from ed_lib.parallel.asynchronous import ModelQueue, ParameterServer, SynchronousServer
from ed_lib.parallel.problems import Perceptron, Quadratic
from ed_lib.parallel.virtual import simulate

torch.set_num_threads(1)

# %% [markdown]
# The data is Fashion-MNIST, and the network is small: one hidden layer of 32. `FEW` images, `TESTS` test images and `GRADIENTS` make the **quick run** of this page; the recorded runs are the full size.

# %%
FEW, TESTS, GRADIENTS = 12_000, 2_000, 400  # at full size 60_000, 10_000 and 3_000
clothes = data.load("fashion-mnist")
images = data.as_inputs(clothes.train_images[:FEW])  # (N, 784)
network = Perceptron(images, clothes.train_labels[:FEW])
test_set = data.as_inputs(clothes.test_images[:TESTS]), clothes.test_labels[:TESTS]
start = network.start()  # all parameters in one tensor, (P,)
gradient, loss = network(start, 0)
print(f"{len(start):,} parameters; the loss of batch 0 is {loss:.2f}")

# %% [markdown]
# | letter | meaning |
# |---|---|
# | $p$ | workers |
# | $P$ | parameters, all of them in one flat tensor $w$ |
# | $\eta$ | the learning rate, lr |
# | $\tau$ | staleness: updates made between reading the parameters and applying the gradient |
# | $\lambda$ | the curvature of a quadratic |
#
# A **task** is the number of a batch. Task 7 is the same 32 images whoever computes it, so that runs can be compared worker by worker and bit by bit.
#
# ## The barrier and the slowest worker
#
# Four workers. Three need one second for a gradient, the fourth five. On a virtual clock we let them work through 48 tasks, in two ways: with a barrier, where each step waits for four gradients and makes one update by their mean; and without one.
#
# **Predict:** how long does each way take?

# %%
SLOW, EVEN = [1, 1, 1, 5], [1, 1, 1, 1]  # seconds for a gradient, of each worker
with_barrier = simulate(SynchronousServer(start, 0.1, 4), network, 48, SLOW)
without = simulate(ParameterServer(start, 0.1), network, 48, SLOW)
for name, run in {"with a barrier": with_barrier, "without": without}.items():
    share = sum(span.end - span.start for span in run.spans) / (4 * run.seconds)
    print(f"{name:14}: {run.seconds:.0f} s, workers busy {share:.0%} of the time")

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
fig, axes = plt.subplots(2, 1, figsize=(5.7, 3.8), sharex=True)
for ax, title, run in zip(axes, ("synchronous", "asynchronous"), (with_barrier, without), strict=True):
    for span in run.spans:
        if span.start < 20:
            colour = figures.ORANGE if span.worker == 3 else figures.BLUE
            ax.barh(span.worker, span.end - span.start - 0.08, left=span.start, height=0.7, color=colour, edgecolor="none",
                    alpha=0.85)
            ax.text((span.start + span.end) / 2, span.worker, span.task, ha="center", va="center", fontsize=8.5)
    ax.set(title=title, yticks=range(4), ylabel="worker", xlim=(0, 20))
    ax.invert_yaxis()
    ax.grid(False)
axes[1].set_xlabel("virtual seconds (the number is the task)")
figures.show(fig, alt="Two time lines with a row for each of four workers. Synchronous: three workers work one second and "
             "then idle four, until the fourth has finished. Asynchronous: all rows are full, and the three fast workers "
             "get five tasks done for each one of the slow worker.")

# %% [markdown]
# With the barrier every step takes five seconds, and three of four workers stand idle most of the time. Without it nobody ever waits; the slow worker gets fewer tasks, and that is all. The gain has a formula. With $s_i$ seconds a gradient, a barrier lets through $p / \max_i s_i$ gradients a second, no barrier $\sum_i 1/s_i$: here 0.8 against 3.2.
#
# The barrier costs something even among equals, if their times vary a little from one gradient to the next. The step waits for the slowest of four draws, and the slowest of four is slower than the average.

# %%
for spread in (0.0, 0.1, 0.3):
    took = {}
    for name, server in {
        "with": SynchronousServer(start, 0.01, 4),
        "without": ParameterServer(start, 0.01),
    }.items():
        took[name] = simulate(server, network, 200, EVEN, spread=spread).seconds
    ratio = took["with"] / took["without"]
    print(f"times vary by {spread:3.0%}: the barrier takes {ratio:.2f} times as long")

# %% mystnb={"code_prompt_show": "Show the check of this section's claims"} tags=["hide-cell", "claim"]
assert with_barrier.seconds == 48 / 4 * 5 == 60 and 15 <= without.seconds <= 20
busy = sum(span.end - span.start for span in with_barrier.spans) / (4 * with_barrier.seconds)
assert abs(busy - (1 + 1 + 1 + 5) / (4 * 5)) < 1e-12 and spread == 0.3 and ratio > 1.2
long = simulate(ParameterServer(torch.zeros(1), 0.1), Quadratic([1.0]), 3200, SLOW)
assert abs(long.seconds - 3200 / (3 + 1 / 5)) < 5  # the rate without a barrier is the sum of the workers' rates

# %% [markdown]
# ## A server that counts
#
# Someone has to hold the parameters: the **parameter server** {cite:p}`dean2012`. It does two things. A worker *pulls* a copy of the parameters, and *pushes* a gradient. To know how stale a gradient is, the server numbers its versions, and says with every copy which one it is. This is all:

# %%
class SmallServer:
    def __init__(self, params, lr):
        self.params, self.lr, self.version = params.clone(), lr, 0

    def pull(self):
        return self.params.clone(), self.version

    def push(self, gradient, read):
        staleness = self.version - read
        self.params -= self.lr * gradient
        self.version += 1
        return staleness


# %% [markdown]
# Two workers read version 0. One pushes, reads again, and pushes again. When the other comes at last, two updates have been made that its gradient knows nothing of.

# %%
server = SmallServer(start, 0.1)
(first, read_first), (second, read_second) = server.pull(), server.pull()
print("worker 0 pushes, τ =", server.push(network(first, 0)[0], read_first))
first, read_first = server.pull()
print("worker 0 pushes, τ =", server.push(network(first, 2)[0], read_first))
print("worker 1 pushes, τ =", server.push(network(second, 1)[0], read_second))

# %% [markdown]
# The server of `ed_lib` also checks what it is given, and changes nothing if it refuses: a shape that does not fit, NaN, a version that has not been yet. And it keeps a log: who, which task, from which version, applied at which.

# %%
notebook.source(ParameterServer.push)

# %% [markdown]
# With one worker there is nothing to be stale against, and the server is plain SGD. The check compares it with `torch.optim.SGD`, to the last bit.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
alone = ParameterServer(start, 0.1)
simulate(alone, network, 30, [1])
parameter = torch.nn.Parameter(start.clone())
optimizer = torch.optim.SGD([parameter], lr=0.1)
for task in range(30):
    parameter.grad = network(parameter, task)[0]
    optimizer.step()
assert torch.equal(alone.params, parameter.detach()) and {push.staleness for push in alone.log} == {0}
try:
    alone.push(gradient, read=31)
except ValueError as error:
    assert "wanted at most 30" in str(error) and alone.version == 30

# %% [markdown]
# ## How stale?
#
# **Predict**, for four even workers: how stale is a gradient, once things have settled? And with the slow one: how stale are its gradients, and how stale those of the others? (That depends on times only. So a single parameter stands in for the network here.)

# %%
def staleness(seconds, n_tasks=960, spread=0.15):  # → τ of each gradient, by worker
    server = ParameterServer(torch.ones(1), 0.01)
    simulate(server, Quadratic([1.0]), n_tasks, seconds, spread=spread)
    everyone = range(len(seconds))
    return [[e.staleness for e in server.log if e.worker == w] for w in everyone]


stale = {"four even workers": staleness(EVEN), "one slow by 5×": staleness(SLOW)}
for name, of in stale.items():
    means = ", ".join(f"{np.mean(some):.1f}" for some in of)
    print(f"{name}: mean τ of each worker {means}; of all {np.mean(sum(of, [])):.2f}")

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
fig, axes = plt.subplots(2, 1, figsize=(5.4, 3.9), sharex=True)
for ax, (name, of) in zip(axes, stale.items(), strict=True):
    fast, slow = Counter(sum(of[:3], [])), Counter(of[3])
    ax.bar(list(fast), list(fast.values()), color=figures.BLUE, label="workers 0 to 2")
    below = [fast[tau] for tau in slow]
    ax.bar(list(slow), list(slow.values()), bottom=below, color=figures.ORANGE, label="worker 3")
    ax.set(title=name, ylabel="gradients")
    ax.legend(fontsize=9)
axes[1].set_xlabel("staleness τ (updates)")
figures.show(fig, alt="Two histograms of staleness. Four even workers: a narrow peak at three. One slow by five times: the fast "
             "workers peak at two, and the gradients of the slow worker form a separate heap around fifteen.")

# %% [markdown]
# While an even worker computes, each of the other three pushes once: $\tau = p - 1 = 3$. While the slow one computes, each of the others pushes five times: $\tau \approx 15$. In general a worker with $s_i$ seconds a gradient sees $\tau_i \approx \sum_{j \ne i} s_i / s_j$.
#
# The mean over *all* gradients is $p - 1$ in both cases. That is no accident. Every update makes each of the $p - 1$ gradients that are under way one older. Speeds only decide who bears it: **the fast get fresher, the slow get staler, and the mean stays.**

# %% mystnb={"code_prompt_show": "Show the check of this section's claims"} tags=["hide-cell", "claim"]
for seconds in (EVEN, SLOW, [1, 2.3, 4, 9.1, 0.4]):
    p, of = len(seconds), staleness(seconds, 1500, 0.0)
    assert abs(np.mean(sum(of, [])) - (p - 1)) < 0.05  # but for the start and the end
    for i, some in enumerate(of):
        assert abs(np.mean(some[1:]) - sum(seconds[i] / s for j, s in enumerate(seconds) if j != i)) < 0.6
assert set(staleness(EVEN, 200, 0.0)[3][1:]) == {3} and set(staleness(SLOW, 320, 0.0)[3]) == {15}

# %% [markdown]
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# **"Without waiting, the slowest worker does not matter"** {cite:p}`qiita2020day4`. True of the throughput: one slow worker of four takes a fifth off the rate of even ones without a barrier, and four fifths with it. Not true of the gradients. It is the slow worker's that arrive stalest, here about fifteen updates late, and they move the parameters as far as any other.
#
# </div>
#
# ## What staleness does to a quadratic
#
# In one case the effect can be computed in full. Take the loss $\tfrac12 \lambda w^2$. With a gradient that is always $\tau$ updates old, descent is
#
# $$ w_{t+1} = w_t - \eta \lambda \, w_{t - \tau}. $$
#
# Without delay this is stable for $\eta\lambda < 2$. With delay it is like steering a ship by where it was a while ago: you turn too late, and then too far. Trying $w_t = z^t$ gives $z^{\tau+1} - z^\tau + \eta\lambda = 0$, and the descent is stable as long as all its roots lie inside the unit circle. The first to leave it does so at {cite:p}`levin1976`
#
# $$ \eta \lambda = 2 \sin \frac{\pi}{2 (2\tau + 1)} \approx \frac{\pi}{2\tau + 1}. $$
#
# **The largest stable rate falls as one over the staleness.** The bound is for a constant delay, which is what even workers give. So we can hold it against the server itself: $\tau + 1$ even workers, at rates below and above the bound.

# %%
curve, points = [], []
for tau in (0, 1, 2, 3, 5, 7, 10, 15):
    limit = asynchronous.stable_rate(curvature=1.0, staleness=tau)
    for factor in (0.6, 0.9, 1.1, 1.5):
        server = ParameterServer(torch.ones(1).double(), factor * limit)
        steps = 20 * (tau + 1) ** 2
        run = simulate(server, Quadratic([1.0]), steps, [1] * (tau + 1))
        points.append((tau, factor * limit, run.spans[-1].loss < 0.5))
    curve.append((tau, limit))

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
fig, ax = plt.subplots(figsize=(5.4, 3.2))
ax.plot(*zip(*curve, strict=True), color=figures.GREY, label="bound")
for stable, colour, marker, label in ((True, figures.BLUE, "o", "shrank"), (False, figures.ORANGE, "x", "grew")):
    there = [(tau, rate) for tau, rate, was in points if was == stable]
    ax.plot(*zip(*there, strict=True), marker, color=colour, label=f"{label} in the simulation", ms=6)
ax.set(yscale="log", xlabel="staleness τ (updates)", ylabel="rate × curvature, ηλ")
ax.legend(fontsize=9)
figures.show(fig, alt="Rate times curvature against staleness, on a logarithmic scale. A curve falls from two at staleness "
             "zero to about a tenth at fifteen. All simulated runs below the curve shrank, all those above it grew.")

# %% mystnb={"code_prompt_show": "Show the check of this section's claims"} tags=["hide-cell", "claim"]
assert all(shrank == (rate < dict(curve)[tau]) for tau, rate, shrank in points) and len(points) == 32
for tau, limit in curve:  # and the roots of the polynomial, for the bound itself
    for factor in (0.999, 1.001):
        roots = np.roots([1, -1, *[0] * (tau - 1), factor * limit] if tau else [1, factor * limit - 1])
        assert (np.abs(roots).max() < 1) == (factor < 1)
assert curve[0][1] == 2 and all(tau * limit >= 1 - 1e-12 for tau, limit in curve[1:])

# %% [markdown]
# That suggests a remedy: if a gradient is $\tau$ updates old, divide its rate by $\tau$. Then the bound becomes $\eta\lambda < 2\tau \sin(\pi / (2(2\tau + 1)))$, which is never below 1: **with the rate divided by the staleness, $\eta\lambda < 1$ is stable at any constant staleness**. This is staleness-aware SGD {cite:p}`zhang2016`: `ParameterServer(..., by_staleness=True)`. Since it looks at each gradient's own $\tau$, it holds back the slow worker's and not the others'.
#
# ## And to a network?
#
# A network is no quadratic. So we measure: test accuracy after the same number of gradients, at six learning rates, for six ways to train. **Predict:** which of them want a smaller rate than serial SGD, and which a larger one?

# %%
RATES, BY_TAU = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8), {"by_staleness": True}
WAYS = {
    "serial": (lambda lr: ParameterServer(start, lr), [1]),
    "synchronous": (lambda lr: SynchronousServer(start, lr, 4), SLOW),
    "asynchronous, even": (lambda lr: ParameterServer(start, lr), EVEN),
    "asynchronous, one slow": (lambda lr: ParameterServer(start, lr), SLOW),
    "even, lr by τ": (lambda lr: ParameterServer(start, lr, **BY_TAU), EVEN),
    "one slow, lr by τ": (lambda lr: ParameterServer(start, lr, **BY_TAU), SLOW),
}

# %% [markdown]
# A run whose parameters leave the finite numbers is stopped by the server. It counts as guessing, one in ten.

# %%
def accuracy(way, lr, n_gradients):
    make, seconds = WAYS[way]
    server = make(lr)
    try:
        simulate(server, network, n_gradients, seconds)
    except asynchronous.Diverged:
        return 0.1
    return network.accuracy(server.params, *test_set)


reached = {way: [accuracy(way, lr, GRADIENTS) for lr in RATES] for way in WAYS}

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
styles = dict(zip(WAYS, [(figures.GREY, "-"), (figures.GREEN, "-"), (figures.BLUE, "-"), (figures.ORANGE, "-"),
                         (figures.BLUE, ":"), (figures.ORANGE, ":")], strict=True))
fig, ax = plt.subplots(figsize=(5.5, 3.5))
for way, found in reached.items():
    ax.plot(RATES, [100 * value for value in found], color=styles[way][0], ls=styles[way][1], marker="o", ms=4, label=way)
ax.set(xscale="log", xlabel="learning rate η", ylabel=f"test accuracy (%)\nafter {GRADIENTS} gradients", ylim=(0, 100))
ax.set_xticks(RATES, RATES)
ax.minorticks_off()
ax.legend(fontsize=8.5)
figures.show(fig, alt="Test accuracy against the learning rate for six ways to train. Serial and synchronous training hold up to "
             "the large rates. Asynchronous training does well at small rates and breaks down at rates that serial "
             "training bears. Dividing the rate by the staleness moves the breakdown to larger rates.")

# %% mystnb={"code_prompt_show": "Show the code of the table"} tags=["hide-input"]
notebook.table(
    [{"way": way, "best accuracy (%)": 100 * max(found), "at rate": RATES[int(np.argmax(found))],
      "at rate 0.2 (%)": 100 * found[RATES.index(0.2)], "at 0.4 (%)": 100 * found[RATES.index(0.4)]}
     for way, found in reached.items()],
    f"After {GRADIENTS} gradients, one seed. The best rate was chosen on the same test images.",
)

# %% [markdown]
# Three things to see. Asynchronous training breaks down at rates that serial SGD bears. Dividing by the staleness brings those rates back. It moves the curve to the right and does not raise its top: tuned, both ways come to much the same here, and what is gained is that a rate need not be found again for every number of workers. And at equal numbers of gradients the synchronous way is no match for the serial one either. It makes one update of four gradients, so after all of them it has moved a quarter as often. Its larger batch bears a larger rate, which makes up for a part of that.

# %% mystnb={"code_prompt_show": "Show the check of this section's claims"} tags=["hide-cell", "claim"]
if clothes.name == "Fashion-MNIST":
    at = {way: dict(zip(RATES, found, strict=True)) for way, found in reached.items()}
    for seconds in ("even", "one slow"):
        assert at[f"asynchronous, {seconds}"][0.4] < min(at["serial"][0.4], at[f"{seconds}, lr by τ"][0.4]) - 0.2
        assert abs(max(reached[f"{seconds}, lr by τ"]) - max(reached[f"asynchronous, {seconds}"])) < 0.08
    assert at["asynchronous, even"][0.2] < at["serial"][0.2] - 0.2
    assert max(reached["serial"]) > max(reached["synchronous"]) > at["serial"][0.2] - 0.1

# %% [markdown]
# The same after equal *seconds*. One worker is slow, and by the formulas above a barrier lets through a quarter as many gradients in the same time.

# %%
duration = GRADIENTS / 3.2  # virtual seconds
passed = int(duration // 5) * 4
print(f"after {duration:.0f} virtual seconds, each at its best rate:")
equal = {
    "synchronous": max(accuracy("synchronous", lr, passed) for lr in RATES),
    "asynchronous, one slow": max(reached["asynchronous, one slow"]),
    "one slow, lr by τ": max(reached["one slow, lr by τ"]),
}
for way, found in equal.items():
    print(f"{way:22}: {found:.1%}")

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
assert passed == GRADIENTS // 4
assert min(equal["asynchronous, one slow"], equal["one slow, lr by τ"]) > equal["synchronous"] or clothes.name != "Fashion-MNIST"

# %% [markdown]
# The recorded runs are larger, with three seeds. Where there is a record, here they are: mean accuracy against the rate.

# %% mystnb={"code_prompt_show": "Show the code of the figure"} tags=["hide-input"]
for record in records.load("parallel"):
    rows = record.select(table="asynchronous, accuracy")
    if rows:
        fig, ax = plt.subplots(figsize=(5.5, 3.5))
        for n, way in enumerate(dict.fromkeys(row.case["method"] for row in rows)):
            some = [row for row in rows if row.case["method"] == way]
            ax.plot([row.case["lr"] for row in some], [100 * np.mean(row.results["accuracy"]) for row in some],
                    marker="o", ms=4, color=figures.COLOURS[n % 5], ls=":" if n >= 5 else "-", label=way)
        ax.set(xscale="log", xlabel="learning rate η", ylabel="test accuracy (%)", title=record.label, ylim=(0, 100))
        ax.legend(fontsize=8.5)
        figures.show(fig, alt="Recorded test accuracy against the learning rate, mean of the seeds, for the ways to train that "
                     "the text names. The shapes are those of the live run above.")
        break

# %% [markdown]
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# **"With a parameter server, gradients are stale; a smaller learning rate is the remedy"** {cite:p}`qiita2020day4`. Holds, and can be made exact: for constant staleness on a quadratic the largest stable rate is $2\sin(\pi/(2(2\tau+1)))/\lambda$. A smaller rate for *all* gradients pays for the few that are very stale. Dividing each gradient's rate by its own staleness keeps larger rates usable; it did not give a better network than a smaller rate for all.
#
# </div>
#
# ## A queue of models
#
# There is another way to avoid waiting, and the article describes it: put several *models* into a queue. A worker pops the next, trains it on a batch, and pushes it back at the end. No gradient is ever stale, since each model is moved only by gradients that were computed at it.
#
# **Predict:** four models, four workers, and as many batches as before. What do we have at the end?

# %%
queue = ModelQueue(start, 0.1, n_models=4)
simulate(queue, network, GRADIENTS, EVEN)
models = queue.drain()  # (4, P): all are back
for model, seen in zip(models, queue.seen, strict=True):
    found = network.accuracy(model, *test_set)
    print(f"{len(seen)} updates, by tasks {seen[:4]} …: {found:.1%}")
print(f"their average: {network.accuracy(models.mean(0), *test_set):.1%}")
serial = ParameterServer(start, 0.1)
simulate(serial, network, GRADIENTS, [1])
found = network.accuracy(serial.params, *test_set)
print(f"one model, all {GRADIENTS} updates: {found:.1%}")

# %% [markdown]
# Four models, each trained on a quarter of the batches. The queue keeps every worker busy and never merges what they learn: model 0 is, bit for bit, what serial SGD on the batches that it saw would have given. Four such lineages are four separate trainings, with a shuffled deck.
#
# Two things merge them. One is averaging the models, at the end or, better, every so often; the chapter on model parallelism shows that this equals averaging gradients after exactly one step, and not after two. The other is a server that takes gradients: the section before.

# %% mystnb={"code_prompt_show": "Show the check of this section's claims"} tags=["hide-cell", "claim"]
assert sorted(sum(queue.seen, [])) == list(range(GRADIENTS))  # every batch exactly once
assert {len(seen) for seen in queue.seen} == {GRADIENTS // 4}
for model, seen in zip(models, queue.seen, strict=True):
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for task in seen:
        parameter.grad = network(parameter, task)[0]
        optimizer.step()
    assert torch.equal(model, parameter.detach())
if clothes.name == "Fashion-MNIST":
    assert np.mean([network.accuracy(model, *test_set) for model in models]) < network.accuracy(serial.params, *test_set)

# %% [markdown]
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# **"Workers push models to a queue and pop the next"** {cite:p}`qiita2020day4`. As a way to keep workers busy it works: every batch is used exactly once, and nothing is lost. As a way to train one model with several workers it is missing a piece: the $k$ models in the queue never learn from each other, and each gets $1/k$ of the updates, unless they are averaged or a server takes gradients instead.
#
# </div>
#
# ## Real processes
#
# Now the same server with real workers. The notebook's process serves; each worker is a process with a pipe to it. Here is the server's life. What arrives is handled one message at a time, so two gradients cannot be applied at once.

# %%
notebook.source(workers._serve)

# %% [markdown]
# We cannot give a laptop four equal GPUs and one slow one, so the workers *sleep* before each gradient, 30 ms each and the last 150 ms, in place of a device that computes. What this measures is waiting.

# %%
few = Perceptron(images[:2000], clothes.train_labels[:2000])
pause = [0.03, 0.03, 0.03, 0.15]
real = {}
for name, server in {
    "synchronous": SynchronousServer(start, 0.05, 4),
    "asynchronous": ParameterServer(start, 0.05),
}.items():
    run = workers.train(server, few, 80, 4, pause=pause)
    of = [[e.staleness for e in server.log if e.worker == w] for w in range(4)]
    real[name] = run, of
    print(f"{name:12}: {80 / run.seconds:5.1f} gradients a second;", end=" ")
    print("by each worker", [len(some) for some in of])

# %% [markdown]
# The rates are close to what the formulas give for the sleeping alone, $4 / 0.15 \approx 27$ and $3 / 0.03 + 1 / 0.15 \approx 107$ a second; the computing and the messages take the rest. And the staleness, measured:

# %%
run, of = real["asynchronous"]
print(f"mean τ of the fast workers {np.mean(sum(of[:3], [])):.1f}", end=", ")
print(f"of the slow one {np.mean(of[3]):.1f}")

# %% mystnb={"code_prompt_show": "Show the check of this section's claims"} tags=["hide-cell", "claim"]
assert real["synchronous"][0].seconds >= 20 * 0.15 and {tau for some in real["synchronous"][1] for tau in some} == {0}
assert all(sorted(span.task for span in run.spans) == list(range(80)) for run, _ in real.values())
assert real["asynchronous"][0].seconds < real["synchronous"][0].seconds  # the wide margin is a factor of four
assert np.mean(of[3]) > np.mean(sum(of[:3], []))

# %% [markdown]
# ## A worker dies
#
# On a hundred machines something fails every day. A synchronous step would wait for the dead for ever, or start again. What does our server do? A worker that ends closes its pipe, and the server notices: it hands the task that the worker held to another.
#
# One thing has to be right: no gradient may be lost, and none applied twice, at whatever moment the worker dies. The rule that ensures it has two halves. A task is **done** when its gradient has arrived whole. It is handed out **again** only when its worker's pipe has ended without that, and then nothing more can come through that pipe. Half a message counts as none.
#
# The server below kills a worker itself, with the signal that no process can catch, in the middle of the run.

# %%
class Killer(ParameterServer):
    def push(self, gradient, read, worker, task):
        if self.version == 20:
            for process in multiprocessing.active_children():
                if process.name == f"worker {(worker + 1) % 3}":
                    process.kill()
        return super().push(gradient, read, worker, task)


server = Killer(start, 0.05)
run = workers.train(server, few, 60, 3, pause=0.02)
for span in run.lost:
    print(f"worker {span.worker} died over task {span.task}", end="; ")
    after = next(push for push in server.log if push.task == span.task)
    print(f"worker {after.worker} did it, as version {after.applied + 1}")
done = Counter(push.task for push in server.log)
print(f"{len(done)} of 60 tasks applied, each {set(done.values())} time(s)")

# %% [markdown]
# The log is also a proof: it says from which version each gradient was computed, so the whole run can be computed again, alone, in one process. The check does that, and gets the same parameters.

# %% mystnb={"code_prompt_show": "Show the check of this section's claims"} tags=["hide-cell", "claim"]
assert sorted(done) == list(range(60)) and set(done.values()) == {1}
versions = [start]
for push in server.log:
    versions.append(versions[-1] - 0.05 * few(versions[push.read], push.task)[0])
assert torch.allclose(versions[-1], server.params, rtol=1e-4, atol=1e-6)
assert len({push.worker for push in server.log if push.applied > 30}) == 2  # two are left
calm, hurt = (SynchronousServer(start, 0.05, 4) for _ in range(2))  # on the virtual clock, and with a barrier
simulate(calm, few, 40, EVEN)
simulate(hurt, few, 40, EVEN, dies={2: 3.5})
assert torch.equal(calm.params, hurt.params)
assert multiprocessing.active_children() == []

# %% [markdown]
# A worker that *raises* is treated differently: its error ends the run and is shown, since the same code on the same batch would raise in the next worker too. And if all workers die, or time is up, there is an error, and no process is left.
#
# ## Hogwild: no server at all
#
# On one machine the workers can go further, and write into the same memory, without locks and without asking. This is Hogwild {cite:p}`niu2011`. To add to a number in memory is to read it, add, and write it back. If two processes do that at the same time, the one that writes last has not seen the other's addition: an **update is lost**.
#
# The paper's point is that this hardly matters if the problem is *sparse*, so that each update touches few of many parameters. Here is one step of it, on least squares with four non-zeros a row.

# %%
notebook.source(hogwild.SparseSquares.descend)

# %% [markdown]
# Two processes share one memory, and do 8,000 such steps, once with 1,000 parameters and once with four, where every update touches all. A counter beside each parameter is raised in the same way, without a lock, so that what is missing in the end is how many additions got lost. **Predict:** what share, in each case?

# %%
rows, STEPS = [], 8_000
for n_params in (1_000, 4):
    problem = hogwild.SparseSquares.random(2_000, n_params, nonzeros=4)
    params, counts = hogwild.train(problem, 2, STEPS, lr=0.5)
    total, lost = STEPS * 4, STEPS * 4 - int(counts.sum())
    at_start = problem.loss(torch.zeros(n_params, dtype=torch.float64))
    row = {"parameters": n_params, "additions": total, "lost": lost}
    row |= {"lost (%)": 100 * lost / total}
    row |= {"loss / at the start": problem.loss(params) / at_start}
    serial = torch.zeros(n_params).double()  # the same steps, one after another
    for step in np.random.default_rng(0).integers(2_000, size=STEPS):
        problem.descend(serial, step, 0.5)
    rows.append(row | {"serial": problem.loss(serial) / at_start})
notebook.table(rows, "Two processes on one memory, and the same steps serially.")

# %% [markdown]
# In the sparse case next to nothing is lost, and the loss is that of serial SGD, to the eye. In the dense one, on a machine with two cores, a good part of the additions disappears, and this small problem converges all the same: a lost update is a step not taken, and the next gradient makes up for it. With one process nothing is ever lost.

# %% mystnb={"code_prompt_show": "Show the check of this section's claims"} tags=["hide-cell", "claim"]
sparse, dense = rows
assert 0 <= sparse["lost"] < 0.1 * sparse["additions"] and 0 <= dense["lost"] < dense["additions"]
assert sparse["loss / at the start"] < 2 * sparse["serial"] + 1e-3 and dense["loss / at the start"] < 1e-6

# %% [markdown]
# ## The table, line by line
#
# Articles on the subject end in a table of synchronous against asynchronous, with words such as *fast* and *unstable* in it. Here are the lines, with the numbers that this page has just measured.

# %% mystnb={"code_prompt_show": "Show the code of the table"} tags=["hide-input"]
rate = {name: 80 / run.seconds for name, (run, _) in real.items()}
busy = [sum(s.end - s.start for s in run.spans) / (4 * run.seconds) for run in (with_barrier, without)]
best = [(RATES[int(np.argmax(reached[way]))], max(reached[way])) for way in ("synchronous", "asynchronous, one slow")]
lines = {"gradients a second, even workers (virtual)": ("4", "4"), "gradients a second, one slow by 5× (virtual)": ("0.8", "3.2"),
         "the same, real processes that sleep": (f"{rate['synchronous']:.0f}", f"{rate['asynchronous']:.0f}"),
         "workers busy, one slow": tuple(f"{share:.0%}" for share in busy),
         "mean staleness, even workers": ("0", f"{np.mean(sum(stale['four even workers'], [])):.1f}"),
         "staleness of the slow worker": ("0", f"{np.mean(stale['one slow by 5×'][3]):.1f}"),
         f"best accuracy after {GRADIENTS} gradients, one slow": tuple(f"{found:.1%}" for _, found in best),
         f"best accuracy after {duration:.0f} virtual seconds, one slow": (
             f"{equal['synchronous']:.1%}", f"{equal['asynchronous, one slow']:.1%}"),
         "best rate": tuple(f"{lr}" for lr, _ in best), "same bits again, whoever is faster": ("yes", "no")}
notebook.table([{"": name, "synchronous": a, "asynchronous": b} for name, (a, b) in lines.items()],
               "Synchronous against asynchronous, p = 4, measured on this page.")

# %% [markdown]
# The last line weighs more than it seems. The result of the synchronous way does not depend on who was faster, or even on who died: it can be repeated, compared with a single device, and debugged. The asynchronous way gives another result each time.

# %% mystnb={"code_prompt_show": "Show the check of this claim"} tags=["hide-cell", "claim"]
ends = {}
makes = {"synchronous": lambda: SynchronousServer(start, 0.1, 4), "asynchronous": lambda: ParameterServer(start, 0.1)}
for name, make in makes.items():
    ends[name] = []
    for times in (EVEN, SLOW, [3, 2, 1, 1]):
        server = make()
        simulate(server, network, 40, times)
        ends[name].append(server.params)
assert all(torch.equal(ends["synchronous"][0], w) for w in ends["synchronous"])
assert not torch.equal(ends["asynchronous"][0], ends["asynchronous"][1])

# %% [markdown]
# <div class="admonition source">
# <p class="admonition-title">The source says · we measured</p>
#
# **"Synchronous is the norm; asynchronous suits uneven workers"** {cite:p}`qiita2020day4`. Both halves hold here. Among even workers there is nothing to gain but the small cost of varying times, and staleness to pay. With one worker slow by 5×, four times as many gradients come through without a barrier, and after equal time the asynchronous network is ahead. On clusters of equal GPUs the norm is well founded: {cite:t}`chen2016` got better results from synchronous steps with a few spare workers than from asynchronous ones.
#
# </div>
#
# ## Over several machines
#
# Between machines the pipe becomes a network, and that is not to be home-made. PyTorch's `torch.distributed.rpc` lets a process call methods of an object that lives in another. The server stays as it is, in the process named "server"; workers on any node get a reference to it and call it:
#
# ```python
# def the_server():  # in a module; it runs in the process named "server", and returns the one that is there
#     return SERVER
#
# rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
# server = rpc.remote("server", the_server)  # a reference
# params, version = server.rpc_sync().pull(rank)
# server.rpc_sync().push(gradient, version, rank, task)
# ```
#
# One thing is new there: calls from different workers run in different threads of the server, so `push` and `pull` then need a lock. Note also what such a server costs. All gradients go through one machine's connection, $2 p$ times the size of the model for $p$ gradients, where a ring spreads the same over all. Large parameter servers are spread over many machines for that reason.
#
# ## Summary
#
# - A barrier lets through $p / \max s$ gradients a second, no barrier $\sum 1/s$. One worker slow by 5× costs four even ones four fifths of the rate with a barrier, and one fifth without.
# - A server that numbers its versions measures staleness. Its mean is $p - 1$, whatever the speeds; the slow worker's gradients are the stalest.
# - On a quadratic, gradients $\tau$ updates old are stable iff $\eta\lambda < 2\sin(\pi/(2(2\tau+1)))$. Dividing each rate by its $\tau$ makes $\eta\lambda < 1$ enough.
# - A queue of models keeps workers busy and never merges its models: $k$ separate trainings with $1/k$ of the updates each.
# - Exactly once: a task is done when its gradient has come whole, and handed out again only when its worker's pipe has ended without it.
# - Hogwild loses updates where they meet, few in a sparse problem. Synchronous remains the norm among equals: it repeats to the bit.

# %% [markdown]
# ## Exercises
#
# Each exercise has a stub to fill in, a check that says whether it is solved, and a hidden solution.
#
# ### Exercise 1: how stale will it be?
#
# Given the seconds that a gradient takes each worker, predict the mean staleness of each worker's gradients, once things have settled.

# %% tags=["exercise"]
def expected_staleness(seconds):  # → a list, τ for each worker
    ...


# %% [markdown]
# The check runs the workers on the virtual clock.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(1)
def check_1(solution):
    for seconds in ([1, 1, 1], [1, 1, 1, 5], [2, 3, 0.5]):
        value = solution(seconds)
        assert value is not None, "the function returns nothing"
        measured = [np.mean(some[1:]) for some in staleness(seconds, 900, 0.02)]
        assert len(value) == len(seconds), "one number for each worker"
        for worker, (mine, found) in enumerate(zip(value, measured, strict=True)):
            assert abs(mine - found) < 0.5, f"worker {worker} of {seconds}: {found:.1f}"


check_1(expected_staleness)


# %% [markdown]
# A solution, for comparison:

# %% cellView="form" mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"]
# @title Solution 1
def expected_staleness(seconds):
    return [sum(mine / other for other in seconds) - 1 for mine in seconds]


check_1(expected_staleness)


# %% [markdown]
# ### Exercise 2: how many workers does a rate bear?
#
# A quadratic with curvature $\lambda$ is to be trained at the rate $\eta$ by even workers without a barrier. What is the largest number of workers with which it stays stable? ($\eta\lambda < 2$, so that one worker does.)

# %% tags=["exercise"]
def most_workers(lr, curvature):  # → a whole number
    ...


# %% [markdown]
# The check trains with your number of workers, which must shrink, and with one more, which must not.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(2)
def check_2(solution):
    for lr, curvature in ((0.37, 1.0), (0.05, 4.0), (1.5, 1.0)):
        p = solution(lr, curvature)
        assert p is not None, "the function returns nothing"
        for workers_, stable in ((p, True), (p + 1, False)):
            server = ParameterServer(torch.ones(1).double(), lr)
            run = simulate(server, Quadratic([curvature]), 1000, [1] * workers_)
            shrank = run.spans[-1].loss < run.spans[0].loss
            assert shrank == stable, f"with {workers_} at {lr}: shrank is {shrank}"


check_2(most_workers)


# %% [markdown]
# A solution, for comparison:

# %% cellView="form" mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"]
# @title Solution 2
def most_workers(lr, curvature):
    p = 1
    while lr < asynchronous.stable_rate(curvature, staleness=p):  # p + 1 workers: τ = p
        p += 1
    return p


check_2(most_workers)


# %% [markdown]
# ### Exercise 3: a queue that merges
#
# Mend the queue of models. You get the models $(k, P)$ after a round in which each of them made *one* step of SGD at the rate $\eta$ from the same parameters. Return the parameters that a synchronous server would have reached, at the same rate, by the same $k$ gradients.

# %% tags=["exercise"]
def merged(models):  # (k, P) → (P,)
    ...


# %% [markdown]
# The check compares it with the synchronous server.

# %% tags=["exercise-check", "nbval-check-output"]
@notebook.exercise(3)
def check_3(solution):
    for k in (2, 5):
        queue, server = ModelQueue(start, 0.3, k), SynchronousServer(start, 0.3, k)
        for rival in (queue, server):
            simulate(rival, network, k, [1] * k)
        value = solution(queue.drain())
        assert value is not None, "the function returns nothing"
        assert value.shape == start.shape, f"its shape is {tuple(value.shape)}"
        moved = (server.params - start).abs().max()
        off = (value - server.params).abs().max() / moved
        assert off < 1e-4, f"with {k} models it is off by {off:.2g} of the step"


check_3(merged)


# %% [markdown]
# A solution, for comparison:

# %% cellView="form" mystnb={"code_prompt_show": "Show a solution"} tags=["solution", "hide-cell", "nbval-check-output"]
# @title Solution 3
def merged(models):
    return models.mean(0)


check_3(merged)

# %% [markdown]
# ## References
#
# - {cite:t}`qiita2020day4`: the article that this part of the book starts from.
# - {cite:t}`dean2012`: asynchronous training with a parameter server, at scale.
# - {cite:t}`zhang2016`: the rate divided by the staleness.
# - {cite:t}`levin1976`: the stability of the delayed recursion.
# - {cite:t}`niu2011`: Hogwild.
# - {cite:t}`chen2016`: synchronous against asynchronous, and spare workers.
