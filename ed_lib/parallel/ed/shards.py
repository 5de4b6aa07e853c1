"""ED with the batch split over the ranks, and ED with every layer's cells split over them."""

import torch
import torch.distributed as dist

from ed_lib.ed import EDNetwork, folded
from ed_lib.parallel.ranks import collectives
from ed_lib.parallel.ranks.collectives import Traffic, Wire


def data_parallel_step(net: EDNetwork, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, Traffic]:
    """One ED step on the batch of all ranks' rows: x (b, n_inputs), target (b, K) of this rank.

    Every rank has the same network, of the backend "torch", and ends with the same weights: the directions
    are added up by one all-reduce of all parameters, and weights that left their sign are put back to zero
    after it → the outputs for this rank's rows (b, K), and what it sent.
    """
    samples = torch.tensor([float(len(x))], device=x.device)
    dist.all_reduce(samples)  # the global batch; ranks may have different shares of it
    output = net.forward(x)
    directions = {name: torch.zeros_like(parameter) for name, parameter in net.parameters.items()}
    net.add_direction(directions, target - output, net.alpha * len(x) / samples.item())
    row = torch.cat([direction.flatten() for direction in directions.values()])
    traffic = collectives.all_reduce(row)
    parts = row.split([direction.numel() for direction in directions.values()])
    for parameter, part in zip(net.parameters.values(), parts, strict=True):
        parameter += part.view_as(parameter)
    net.keep_signs()
    return output, traffic


class WidthSplit:
    """The hidden-to-hidden layers of an ED network, each rank with W/p of the pairs of cells in every layer.

    Forward, every layer's answers are gathered on all ranks: one all-gather a layer. The update takes none:
    each rank has what its cells received and answered, and the error. ``traffic`` counts what was sent.

    net: an EDNetwork of the backend "torch" with free biases, the same on every rank; its hidden layers'
    parameters are copied. The ranks divide its width.
    """

    def __init__(self, net: EDNetwork):
        self.wire, self.net, self.traffic = Wire(), net, Traffic()
        p, r = self.wire.size, self.wire.rank
        if net.width % p or net.bias != "free":
            raise ValueError(
                f"net has width {net.width} and bias {net.bias!r}; wanted {p} ranks to divide it"
            )
        self.pairs = net.width // p
        mine = slice(r * self.pairs, (r + 1) * self.pairs)

        def columns(array):  # (D, K, rows, 2W) → (D, K, rows, 2W/p): both types of this rank's pairs
            return array.unflatten(-1, (2, net.width))[..., mine].flatten(-2).clone()

        self.weight = columns(net.parameters["hidden.weight"])
        self.bias = columns(net.parameters["hidden.bias"])

    def forward(self, first: torch.Tensor) -> torch.Tensor:
        """The answers of all layers: the first hidden layer's (K, B, 2W) → (D + 1, K, B, 2W)."""
        k, b, cells = first.shape
        self.states = self.net.space.empty((len(self.weight) + 1, k, b, cells))
        self.own = self.net.space.empty((len(self.weight), k, b, 2 * self.pairs))
        self.states[0] = first
        for layer, (weight, bias) in enumerate(zip(self.weight, self.bias, strict=True)):
            folded.fire(self.states[layer], weight, bias, self.net.u0, out=self.own[layer])
            everyone = self.net.space.empty((self.wire.size, k, b, 2, self.pairs))
            everyone[self.wire.rank] = self.own[layer].unflatten(-1, (2, self.pairs))
            self.traffic += collectives.all_gather(everyone)
            by_type = everyone.permute(1, 2, 3, 0, 4)  # (p, K, B, 2, W/p) → (K, B, 2, p, W/p)
            self.states[layer + 1] = by_type.reshape(k, b, cells)
        return self.states

    def update(self, error: torch.Tensor) -> None:
        """The ED step of this rank's weights: error (B, K). Sends nothing."""
        step = self.net.alpha / len(error)
        gains = folded.gains(error * step, self.net.rule)  # (K, 2, B)
        of_bias = folded.bias_gains(gains, error * step, "free")
        folded.learn(self.weight, self.bias, self.states[:-1], self.own, gains, of_bias)
