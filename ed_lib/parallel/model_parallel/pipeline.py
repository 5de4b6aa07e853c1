"""A pipeline on real processes: one worker a stage, which runs any schedule of backpropagation.

Rank s of the group is stage s. It has one part of the model, and executes the instructions that a schedule
(:mod:`.schedules`) gives it. Activations go to the next stage and gradients to the one before,
as messages without tags: the n-th message on a link is the n-th that its receiver takes.

Sources: as in :mod:`.schedules`. In earnest, use ``torch.distributed.pipelining``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ed_lib import check
from ed_lib.parallel.model_parallel.schedules import Instruction, Schedule
from ed_lib.parallel.model_parallel.simulator import simulate
from ed_lib.parallel.ranks.collectives import Traffic, agree
from ed_lib.parallel.ranks.launcher import device

BACKWARD = ({"backward"}, {"backward_input", "backward_weight"})  # in one, or in two


@dataclass(frozen=True)
class Report:
    """What a stage did for one batch.

    ``loss``: the mean over the batch, on the last stage; None on the others. ``sent``: {(what, sender,
    receiver): Traffic}. ``live``: the most micro-batches whose activations it kept at one time.
    """

    loss: float | None
    sent: dict[tuple[str, int, int], Traffic]
    live: int


class Pipeline:
    """One stage of a model that is cut into a chain, on the rank of the same number.

    parts: the parts of the model in order, one for each rank, of which this rank keeps its own (those of
    others may be None). Each takes one tensor (b, …) and gives one tensor (b, …). loss: a function of outputs
    and targets, the mean over the samples. shape: that of a batch of inputs, (B, …). microbatches: how many m
    a batch is cut into, by ``tensor_split``. schedule: a function as in :mod:`.schedules`.

    All ranks construct it together. Where a sample's output depends on that sample alone (so, without batch
    normalization), the gradients are those of the unsplit model, however uneven the micro-batches.
    """

    def __init__(
        self,
        parts: Sequence[torch.nn.Module | None],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        shape: Sequence[int],
        microbatches: int,
        schedule: Schedule,
    ):
        self.rank, stages = dist.get_rank(), dist.get_world_size()
        self.shape, m = tuple(shape), check.count("microbatches", microbatches)
        if len(parts) != stages:
            raise ValueError(f"parts has {len(parts)} entries; wanted {stages}, one for each rank")
        if m > self.shape[0]:
            raise ValueError(f"microbatches is {m} and shape {self.shape}; wanted at least {m} samples")
        check_schedule(schedule, stages, m)
        agree(f"a pipeline for {self.shape} in {m} micro-batches by {schedule.__name__}")
        self.last, self.loss = stages - 1, loss
        part: Any = parts[self.rank]
        self.module = part.to(device())
        self.program = list(schedule(self.rank, stages, m))
        self.sizes = [len(part) for part in torch.empty(self.shape[0]).tensor_split(m)]
        self.samples: dict[int, tuple] = {}  # {peer: (shape, dtype)}: one sample of what comes from there
        self.told: set[int] = set()  # the peers that know what they get from here
        self.routes = _connect(stages)

    def run(self, inputs: torch.Tensor | None = None, targets: torch.Tensor | None = None) -> Report:
        """Forward and backward for one batch → :class:`Report`; gradients are added to the parameters'.

        inputs: (B, …), on the first stage; targets: B of them, on the last. What other ranks pass is not
        looked at.
        """
        if self.rank == 0:
            assert inputs is not None, "wanted inputs, on the first stage"
            check.shape("inputs", tuple(inputs.shape), self.shape)
            self.inputs = inputs.detach().to(device()).tensor_split(len(self.sizes))
        if self.rank == self.last:
            assert targets is not None, "wanted targets, on the last stage"
            check.shape("targets", tuple(targets.shape[:1]), self.shape[:1])
            self.targets = targets.to(device()).tensor_split(len(self.sizes))
        self.most = 0
        self.total: Any = 0.0
        self.kept: dict[int, tuple] = {}  # {micro-batch: (input, output)}
        self.arrived: dict[tuple, torch.Tensor] = {}  # {(what, micro-batch): tensor}
        self.ready: dict[tuple, torch.Tensor] = {}
        self.sent: dict[tuple[str, int, int], Traffic] = {}
        self.requests: dict[tuple, tuple] = {}
        self.inboxes = {peer: self._inbox(peer) for peer in (self.rank - 1, self.rank + 1)}
        for do in self.program:
            getattr(self, f"do_{do.op}")(do.microbatch, do)
        self.do_step()
        return Report(float(self.total) if self.rank == self.last else None, self.sent, self.most)

    # --- the instructions

    def do_forward(self, i: int, _: Instruction) -> None:
        """Keeps what the backward pass needs; on the last stage this ends in the loss."""
        x = self.inputs[i] if self.rank == 0 else self.arrived.pop(("activation", i)).requires_grad_()
        y = self.module(x)  # (b, …)
        if self.rank == self.last:
            y = self.loss(y, self.targets[i]) * (self.sizes[i] / self.shape[0])  # its share of the batch's
            self.total += y.detach()
        self.kept[i] = x, y
        self.most = max(self.most, len(self.kept))
        self.ready["activation", i] = y.detach()

    def do_backward(self, i: int, _: Instruction) -> None:
        """All gradients of micro-batch i at this stage."""
        x, y = self.kept.pop(i)
        if y.requires_grad:  # a first stage may have no weights
            y.backward(self.arrived.pop(("gradient", i), None))
        self.ready["gradient", i] = x.grad

    def do_backward_input(self, i: int, _: Instruction) -> None:
        """The gradient of the stage's input, and no weight's."""
        x, y = self.kept[i]
        if self.rank > 0:
            torch.autograd.backward(y, self.arrived.get(("gradient", i)), inputs=[x], retain_graph=True)
            self.ready["gradient", i] = x.grad

    def do_backward_weight(self, i: int, _: Instruction) -> None:
        """The gradients of the weights, for which autograd walks back through the stage a second time.

        With more than one layer in a stage, that costs more than the t_w of the papers, whose workers keep
        the gradient of every layer's output from the first walk.
        """
        _, y = self.kept.pop(i)
        gradient = self.arrived.pop(("gradient", i), None)
        if weights := [weight for weight in self.module.parameters() if weight.requires_grad]:
            torch.autograd.backward(y, gradient, inputs=weights)

    def do_send(self, i: int, do: Instruction) -> None:
        """Starts to send, and goes on. The tensor is kept until it is known to have been received."""
        tensor, link = self.ready.pop((do.what, i)).contiguous(), self.routes[self.rank, do.peer]
        if do.peer not in self.told:  # the first message says how large all of them are
            dist.send_object_list([(tensor.shape[1:], tensor.dtype)], do.peer, link)
            self.told.add(do.peer)
        self.requests[do.what, i] = dist.isend(tensor, do.peer, link), tensor
        route = do.what, self.rank, do.peer
        self.sent[route] = self.sent.get(route, Traffic()) + Traffic(1, tensor.nbytes)

    def do_receive(self, i: int, do: Instruction) -> None:
        """Waits for what this instruction names."""
        self.arrived[do.what, i] = next(self.inboxes[do.peer])
        if do.what == "gradient":  # so the activation that it belongs to has been received
            self.requests.pop(("activation", i))[0].wait()

    def do_step(self, *_: Any) -> None:
        """The batch is done: nothing that was sent is still on its way."""
        for request, _ in self.requests.values():
            request.wait()
        self.requests.clear()

    # --- what comes, and in which shape

    def _inbox(self, peer):
        """Yields what comes from a peer, in order. One receive is posted ahead of the one that is taken.

        So a message travels while this stage computes. Posting all of them ahead would need m buffers.
        """
        link, waiting = self.routes.get((peer, self.rank)), None
        todo = [do.microbatch for do in self.program if do.op == "receive" and do.peer == peer]
        for i in [*todo, None]:
            taken, waiting = waiting, None
            if i is not None:
                if peer not in self.samples:
                    dist.recv_object_list(first := [None], peer, link)
                    self.samples[peer] = first[0]
                shape, dtype = self.samples[peer]
                buffer = torch.empty(self.sizes[i], *shape, dtype=dtype, device=device())
                waiting = buffer, dist.irecv(buffer, peer, link)
            if taken is not None:
                taken[1].wait()
                yield taken[0]


def one_batch(
    model: torch.nn.Sequential,
    loss: Callable,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    microbatches: int,
    schedules: Sequence[Schedule],
) -> list[tuple[Report, dict[str, torch.Tensor]]]:
    """For ``launch``: a batch under each of several schedules, on a cut model.

    → for each schedule: (:class:`Report`, {parameter's name in the model: gradient}), those of this rank.
    """
    found, parts = [], cut(model, dist.get_world_size())
    for schedule in schedules:
        model.zero_grad()
        worker = Pipeline(parts, loss, inputs.shape, microbatches, schedule)
        report = worker.run(inputs, targets)
        found.append((report, {n: w.grad for n, w in model.named_parameters() if w.grad is not None}))
    return found


def cut(
    model: torch.nn.Sequential, parts: int, costs: Sequence[float] | None = None
) -> list[torch.nn.Sequential]:
    """An nn.Sequential as a list of ``parts`` consecutive ones, which share its layers.

    costs: one number for each layer, such as its seconds; all alike if None. The costliest part costs as
    little as any cut allows. No two parts may share a parameter: each would have half of its gradient.
    """
    if check.count("parts", parts) > len(model):
        raise ValueError(f"parts is {parts}; wanted at most {len(model)}, the number of layers")
    ends = [0, *balance([1.0] * len(model) if costs is None else costs, parts)]
    found = [model[start:end] for start, end in zip(ends[:-1], ends[1:], strict=True)]
    if sum(len(set(part.parameters())) for part in found) > len(set(model.parameters())):
        raise ValueError("model has a parameter in two of the parts; wanted each in one")
    return found


def balance(costs: Sequence[float], parts: int) -> list[int]:
    """Where each of ``parts`` consecutive parts of ``costs`` ends, so that the largest sum is least."""
    best: dict[int, tuple[float, list[int]]] = {
        0: (0.0, [])
    }  # {layers so far: (largest sum, ends)}, with as many parts as were cut
    for part in range(1, parts + 1):
        best = {
            end: min((max(best[at][0], sum(costs[at:end])), [*best[at][1], end]) for at in best if at < end)
            for end in range(part, len(costs) - parts + part + 1)
        }
    return best[len(costs)][1]


def check_schedule(schedule: Schedule, stages: int, microbatches: int) -> None:
    """ValueError unless every stage does all micro-batches once, no stage waits for ever, and messages are
    taken in the order in which they are sent.
    """
    on_the_way: dict[tuple[int, int], dict[str, list]] = {}
    for stage in range(stages):
        done: dict[str, list[int]] = {}
        for do in schedule(stage, stages, microbatches):
            if do.op in ("send", "receive"):
                route = (stage, do.peer) if do.op == "send" else (do.peer, stage)
                on_the_way.setdefault(route, {}).setdefault(do.op, []).append((do.what, do.microbatch))
            elif do.op != "step":
                done.setdefault(do.op, []).append(do.microbatch)
        whole = "forward" in done and set(done) - {"forward"} in BACKWARD
        if not whole or any(sorted(found) != list(range(microbatches)) for found in done.values()):
            raise ValueError(
                f"schedule has stage {stage} do {done}; wanted each micro-batch forward and back once"
            )
    for (sender, receiver), messages in on_the_way.items():
        if abs(sender - receiver) != 1 or messages.get("send") != messages.get("receive"):
            raise ValueError(
                f"schedule has {sender} send {messages.get('send')} and {receiver} receive "
                f"{messages.get('receive')}; wanted the same between neighbours, in the same order"
            )
    simulate(schedule, stages, microbatches, {})  # ValueError if it stops


def _connect(stages):
    """{(sender, receiver): group}: one for each direction of each link, with its connection made.

    Under NCCL a group has one queue a rank, and a send stays in it until it is received. In one queue for
    both directions, two neighbours that both send would wait for each other; in queues apart neither a
    receive nor a computation stands behind a send. Connections are made link after link, for the same reason.
    """
    links = [route for s in range(stages - 1) for route in ((s, s + 1), (s + 1, s))]
    groups = {link: dist.new_group(link) for link in links}  # every rank calls this for every group
    token = torch.zeros(1, device=device())
    for (sender, receiver), group in groups.items():
        if dist.get_rank() == sender:
            dist.isend(token, receiver, group).wait()
        if dist.get_rank() == receiver:
            dist.irecv(token, sender, group).wait()
    return groups
