"""A pipeline on real processes: rank s is stage s, has a part of the model, and executes the
instructions of any schedule; ``schedules`` has them, and their bubbles. Of the messages of a kind
from one stage to another, the n-th is the n-th that its receiver takes. In earnest, use
``torch.distributed.pipelining``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ed_lib import check
from ed_lib.parallel import messages
from ed_lib.parallel.collectives import Traffic, agree
from ed_lib.parallel.launcher import device
from ed_lib.parallel.schedules import Instruction, Schedule
from ed_lib.parallel.simulator import check_schedule


@dataclass(frozen=True)
class Report:
    """What a stage did for one batch: the mean ``loss``, on the last stage; what it ``sent``,
    {(what, sender, receiver): Traffic}; and the most micro-batches whose activations it kept at one
    time, ``live``.
    """

    loss: float | None
    sent: dict[tuple[str, int, int], Traffic]
    live: int


class Pipeline:
    """One stage of a model that is cut into a chain, on the rank of the same number.

    parts: of the model in order, one for each rank, or v times as many, of which rank s keeps the
    parts s, s + p, s + 2p … (others may be None). Each takes a tensor (b, …) and gives one. loss: a
    function of outputs and targets, the mean over the samples. shape: of a batch of inputs, (B, …).
    microbatches: m, by ``tensor_split``. Where a sample's output depends on that sample alone, the
    gradients are those of the unsplit model, however uneven the micro-batches. All ranks construct
    it together. ValueError, on each, for a schedule that cannot run and where ranks differ.
    """

    def __init__(
        self, parts: Sequence[torch.nn.Module | None],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        shape: Sequence[int], microbatches: int, schedule: Schedule,
    ):  # fmt: skip
        stages = dist.get_world_size()
        self.rank = dist.get_rank()
        self.last = stages - 1
        self.shape = tuple(shape)
        m = check.count("microbatches", microbatches)
        if len(parts) % stages or not parts:
            wanted = f"wanted {stages}, one for each rank, or more"
            raise ValueError(f"parts has {len(parts)} entries; {wanted}")
        if m > self.shape[0]:
            came = f"microbatches is {m} and shape {self.shape}"
            raise ValueError(f"{came}; wanted at least {m} samples")
        check_schedule(schedule, stages, m, len(parts) // stages)
        agree(f"a pipeline for {self.shape} in {m} micro-batches by {schedule.__name__}")
        self.loss = loss
        own: Any = parts[self.rank :: stages]
        self.modules = [part.to(device()) for part in own]  # one for each chunk
        # The optimizer's step is the caller's.
        self.program = [do for do in schedule(self.rank, stages, m) if do.op != "step"]
        self.sizes = [len(part) for part in torch.empty(self.shape[0]).tensor_split(m)]
        messages.prepare()
        # {chunk: one sample of what it makes}, and {(what, chunk): one sample of what comes}
        self.made: dict[int, messages.Sample] = {}
        self.samples: dict[tuple, messages.Sample] = {}
        # The (what, chunk) of which the receiver knows that.
        self.told: set[tuple] = set()

    def run(
        self, inputs: torch.Tensor | None = None, targets: torch.Tensor | None = None
    ) -> Report:
        """Forward and backward for one batch → :class:`Report`; gradients are added to the
        parameters'.

        inputs: (B, …), on the first stage; targets: B of them, on the last. ValueError for a part
        that does not keep (b, …), on the rank that has it: the others wait for its messages, until
        :func:`.launcher.launch` ends them.
        """
        self.inputs = self._split("inputs", inputs, None) if self.rank == 0 else []
        self.targets = self._split("targets", targets, 1) if self.rank == self.last else []
        self.total: Any = 0.0
        self.most = 0
        # {(micro-batch, chunk): (input, output)}: what a backward pass needs
        self.kept: dict[tuple, tuple] = {}
        # {(what, micro-batch, chunk): tensor}: received and not yet used, computed and not yet sent
        self.arrived: dict[tuple, torch.Tensor] = {}
        self.ready: dict[tuple, Any] = {}
        self.requests: dict[tuple, tuple] = {}
        self.sent: dict[tuple[str, int, int], Traffic] = {}
        self.inboxes = {what: self._inbox(what) for what in messages.KINDS}
        for do in self.program:
            getattr(self, f"do_{do.op}")(do.microbatch, do)
        for request, _ in self.requests.values():
            request.wait()
        loss = float(self.total) if self.rank == self.last else None
        return Report(loss, self.sent, self.most)

    # --- the instructions

    def do_forward(self, i: int, do: Instruction) -> None:
        """Computes this device's layers, and at the end of the chain the loss. Keeps what the
        backward pass needs.
        """
        at = i, do.chunk
        if self._first(do):
            x = self.inputs[i]
        else:
            x = self.arrived.pop(("activation", *at)).requires_grad_()
        # (b, …) → (b, …)
        y = self._apply(self.modules[do.chunk], x, do)
        if self._ends(do):
            # The mean over a micro-batch counts by its share of the batch.
            share = self.sizes[i] / self.shape[0]
            y = self.loss(y, self.targets[i]) * share
            self.total += y.detach()
        self.kept[at] = x, y
        self.most = max(self.most, len(self.kept))
        self.ready["activation", *at] = y.detach()

    def do_backward(self, i: int, do: Instruction) -> None:
        """All gradients of micro-batch i at this stage."""
        at = i, do.chunk
        x, y = self.kept.pop(at)
        # At the end of the chain y is the loss, for which no gradient arrives. If the chain begins
        # with layers without weights, y needs no gradient.
        if y.requires_grad:
            y.backward(self.arrived.pop(("gradient", *at), None))
        self.ready["gradient", *at] = messages.gradient(x)

    def do_backward_input(self, i: int, do: Instruction) -> None:
        """The gradient of the stage's input, and no weight's."""
        at = i, do.chunk
        x, y = self.kept[at]
        if self._first(do):
            return
        # A part may give what hangs on neither its input nor its weights.
        if y.requires_grad:
            gradient = self.arrived.get(("gradient", *at))
            torch.autograd.backward(y, gradient, inputs=[x], retain_graph=True)
        self.ready["gradient", *at] = messages.gradient(x)

    def do_backward_weight(self, i: int, do: Instruction) -> None:
        """The gradients of the weights, for which autograd walks back through the stage a second
        time; the papers' workers keep the gradient of every layer's output from the first walk.
        """
        at = i, do.chunk
        _, y = self.kept.pop(at)
        gradient = self.arrived.pop(("gradient", *at), None)
        parameters = self.modules[do.chunk].parameters()
        weights = [weight for weight in parameters if weight.requires_grad]
        if weights and y.requires_grad:
            torch.autograd.backward(y, gradient, inputs=weights)

    def do_send(self, i: int, do: Instruction) -> None:
        """Starts to send, and goes on. The tensor is kept until it is known to have been
        received.
        """
        tensor = self.ready.pop((do.what, i, do.chunk)).contiguous()
        kind = do.what, do.chunk
        # The first message says how large all of them are.
        if kind not in self.told:
            self.told.add(kind)
            self._start(do, messages.header(tensor), ("header", *kind))
        self._start(do, tensor, (do.what, i, do.chunk))
        route = do.what, self.rank, do.peer
        before = self.sent.get(route, Traffic())
        self.sent[route] = before + Traffic(1, tensor.nbytes)

    def do_receive(self, i: int, do: Instruction) -> None:
        """Waits for what this instruction names."""
        chunk = self._chunk_here(do)
        self.arrived[do.what, i, chunk] = next(self.inboxes[do.what])
        # A gradient comes back: so the activation that it belongs to has been received.
        if do.what == "gradient":
            request, _ = self.requests.pop(("activation", i, chunk))
            request.wait()

    def _start(self, do, tensor, name):
        """Starts to send; the tensor stays here under a name with the request."""
        group = messages.channel(do.what, self.rank, do.peer)
        self.requests[name] = dist.isend(tensor, do.peer, group), tensor

    def _chunk_here(self, do):
        """This rank's chunk for which a message is; an instruction names its sender's."""
        if do.what == "activation" and self.rank == 0:
            # From the last rank, the chain goes on at the first with the next chunk.
            return do.chunk + 1
        if do.what == "gradient" and self.rank == self.last:
            return do.chunk - 1
        return do.chunk

    # --- what comes, and in which shape

    def _inbox(self, what):
        """Yields what comes of a kind, in order. One receive is posted ahead: it travels
        meanwhile.
        """
        todo = [do for do in self.program if do.op == "receive" and do.what == what]
        waiting = None
        for do, following in zip(todo, [*todo[1:], None], strict=True):
            buffer, request = waiting or self._post(do)
            # Only if its size is known: its header may come later.
            known = following is not None and (what, following.chunk) in self.samples
            waiting = self._post(following) if known else None
            request.wait()
            yield buffer

    def _post(self, do):
        """Starts to receive a message → (where it will be, the request)."""
        group = messages.channel(do.what, do.peer, self.rank)
        kind = do.what, do.chunk
        if kind not in self.samples:
            header = messages.empty_header()
            dist.irecv(header, do.peer, group).wait()
            self.samples[kind] = messages.read(header)
        shape, dtype = self.samples[kind]
        buffer = torch.empty(self.sizes[do.microbatch], *shape, dtype=dtype, device=device())
        return buffer, dist.irecv(buffer, do.peer, group)

    def _apply(self, part, x, do):
        """What a part makes of x, (b, …) → (b, …)."""
        # A copy, since a part may begin in place.
        y = part(x.clone())
        first = self.made.get(do.chunk)
        fault = messages.fault(y, len(x), first, goes_on=not self._ends(do))
        if fault:
            # Before it is sent: a message of another size than the receiver's would abort gloo.
            number = do.chunk * (self.last + 1) + self.rank
            raise ValueError(f"parts[{number}] gives {fault}")
        self.made[do.chunk] = messages.sample_of(y)
        return y

    def _first(self, do):
        """Whether an instruction is of the chain's first part."""
        return self.rank == 0 and do.chunk == 0

    def _ends(self, do):
        """Whether it is of the last one."""
        return self.rank == self.last and do.chunk == len(self.modules) - 1

    def _split(self, name, batch, axes):
        """A batch in micro-batches; ValueError unless its first axes, or all, are those of
        ``shape``.
        """
        check.shape(name, () if batch is None else tuple(batch.shape[:axes]), self.shape[:axes])
        return batch.detach().to(device()).tensor_split(len(self.sizes))


def cut(model: torch.nn.Sequential, parts: int) -> list[torch.nn.Sequential]:
    """An nn.Sequential as a list of ``parts`` consecutive ones, which share its layers, as many in
    each as in any other, or one more. No two may share a parameter: each would have half of its
    gradient.
    """
    n = len(model)
    if check.count("parts", parts) > n:
        raise ValueError(f"parts is {parts}; wanted at most {n}, the number of layers")
    found = [model[n * part // parts : n * (part + 1) // parts] for part in range(parts)]
    # A parameter in two of them would be counted twice.
    counted = sum(len(set(part.parameters())) for part in found)
    if counted > len(set(model.parameters())):
        raise ValueError("model has a parameter in two of the parts; wanted each in one")
    return found
