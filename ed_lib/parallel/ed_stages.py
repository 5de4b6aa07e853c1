"""ED cut into a chain of stages, one on each rank: activations go forward, one error a sample comes back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ed_lib import check
from ed_lib.ed import EDNetwork, layout
from ed_lib.ed.network import check_input, check_target
from ed_lib.parallel import schedules
from ed_lib.parallel.collectives import Traffic, Wire


class EDStage:
    """One stage of an :class:`ed_lib.ed.EDNetwork` of the backend "torch": its layers, copied.

    ``kept`` holds, for each micro-batch in work, what the update needs: (x, states, output).
    """

    def __init__(self, net: EDNetwork, number: int, stages: int):
        check.choice("net's backend", net.space.backend, ["torch"])
        if stages > (most := max(1, net.depth)):
            raise ValueError(f"stages is {stages}; wanted at most {most}, one hidden layer for each")
        self.net, self.number = net, number
        self.is_first, self.is_last = number == 0, number == stages - 1
        hidden = np.array_split(np.arange(net.depth), stages)[number].tolist()  # its hidden layers
        self.params: dict[str, torch.Tensor] = {}
        for name, whole in net.parameters.items():
            layer = name.split(".")[0]
            if layer == "hidden":
                self.params[name] = whole[hidden].clone()
            elif self.is_first if layer == "input" else self.is_last:
                self.params[name] = whole.clone()
        self.kept: dict[int, tuple] = {}

    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """Micro-batch i: (K, b, 2W) → (K, b, 2W).

        The first stage takes x (b, n_inputs), the last one returns the outputs (b, K).
        """
        p, net = self.params, self.net
        k, cells, b = net.n_outputs, 2 * net.width, x.shape[-2]
        states = net.space.empty((len(p["hidden.weight"]) + 1, k, b, cells))
        if self.is_first:
            layout.fire_input(x, p["input.weight"], self._bias("input"), net.u0, out=states[0])
        else:
            states[0] = x
        layout.forward(states, p["hidden.weight"], self._bias("hidden"), net.u0)
        output: Any = None
        if self.is_last:
            output = net.space.empty((k, b, 2))  # the excitatory and the inhibitory cell
            layout.fire(states[-1], p["output.weight"], self._bias("output"), net.u0, out=output)
        self.kept[i] = x, states, output
        return output[..., 0].T if self.is_last else states[-1]

    def update(self, i: int, error: torch.Tensor, batch: int) -> None:
        """The ED step of this stage's layers for micro-batch i, part of ``batch`` samples: error (b, K)."""
        p, net, (x, states, output) = self.params, self.net, self.kept.pop(i)
        layout.add_direction(p, x, states, output, error * (net.alpha / batch), net.rule, net.bias)

    def _bias(self, layer):
        return layout.bias_term(self.params[f"{layer}.bias"], self.net.bias)


class EDPipeline:
    """This rank's part of an ED network that is cut into one stage for each rank of the group; every rank is
    given a network with the same weights. Bad data is an error on every rank, before anything is sent."""

    def __init__(self, net: EDNetwork):
        # Activations and errors go by groups of their own: NCCL keeps the order of all messages of a group.
        self.wires = {what: Wire(dist.new_group()) for what in ("activation", "error")}
        self.number, self.stages = dist.get_rank(), dist.get_world_size()
        self.net, self.stage = net, EDStage(net, self.number, self.stages)

    @property
    def traffic(self) -> dict[str, Traffic]:
        """What this rank has sent so far: {"activation": Traffic, "error": Traffic}."""
        return {what: wire.traffic for what, wire in self.wires.items()}

    def step(self, x: torch.Tensor, target: torch.Tensor, microbatches: int = 1) -> torch.Tensor | None:
        """One ED step, as ``net.step``: x (B, n_inputs), target (B, K), on every rank.

        The outputs (B, K) on the last stage, None on the others.
        """
        x = check_input(self.net, x)
        target = check_target(self.net, target, len(x))
        if (m := check.count("microbatches", microbatches)) > len(x):
            raise ValueError(f"microbatches is {m}; wanted at most {len(x)}, the samples of the batch")
        parts = zip(x.tensor_split(microbatches), target.tensor_split(microbatches), strict=True)
        return self._run([(*part, len(x)) for part in parts])

    def _run(self, parts):
        """Follows the schedule over micro-batches (x, target, samples to divide by)."""
        inbox, outbox = {}, {}  # {(what, micro-batch): tensor}
        outputs, requests = [], []
        for do in schedules.ed(self.number, self.stages, len(parts)):
            i, (x, target, batch) = do.microbatch, parts[do.microbatch]
            if do.op == "receive":
                inbox[do.what, i] = self._receive(do, len(x))
            elif do.op == "send":
                requests += self.wires[do.what].start(outbox[do.what, i], do.peer)
            elif do.op == "forward":
                out = self.stage.forward(i, x if self.stage.is_first else inbox.pop(("activation", i)))
                outbox["activation", i] = out
                if self.stage.is_last:
                    outputs.append(out)
                    inbox["error", i] = outbox["error", i] = (target - out).contiguous()  # (b, K)
            else:
                self.stage.update(i, inbox.pop(("error", i)), batch)
        for request in requests:  # outbox holds the tensors until they are sent
            request.wait()
        return self.net.space.library.cat(outputs) if self.stage.is_last else None

    def _receive(self, do, b):
        k, cells = self.net.n_outputs, 2 * self.net.width
        tensor = self.net.space.empty((k, b, cells) if do.what == "activation" else (b, k))
        self.wires[do.what].receive(tensor, do.peer)
        return tensor


def merge(net: EDNetwork, parts: Sequence[dict[str, torch.Tensor]]) -> None:
    """The parameters of all stages, as each ``stage.params``, put back together into ``net``."""
    for name, whole in net.parameters.items():
        found = [part[name] for part in parts if name in part]
        whole.copy_(net.space.library.cat(found) if name.startswith("hidden") else found[0])
