"""What a step of ED cannot do without: the bytes it has to move and the operations it has to do.

A byte is counted once however often a program touches it. So these are the least that any program
moves when weights and activations come from memory and go back there. A cost is (bytes, FLOPs).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The sizes of an ED network and of a batch; ``itemsize`` is the bytes of a number."""

    n_inputs: int
    width: int
    depth: int
    batch: int
    n_outputs: int = 1
    itemsize: int = 4

    @property
    def hidden_weights(self) -> int:
        """Numbers in the hidden-to-hidden weights: D K (2W)²."""
        return self.depth * self.n_outputs * (2 * self.width) ** 2

    @property
    def weights(self) -> int:
        """Numbers in all weights: those, and K 2I 2W and K 2W 2 of the input and the output
        layer.
        """
        cells = 2 * self.width  # of a layer
        # Both types of sender send the inputs; both types of cell answer at the output.
        first = self.n_outputs * 2 * self.n_inputs * cells
        last = self.n_outputs * cells * 2
        return first + self.hidden_weights + last

    @property
    def activations(self) -> int:
        """Numbers that the hidden layers answer: (D + 1) K B 2W."""
        return (self.depth + 1) * self.n_outputs * self.batch * 2 * self.width

    @property
    def product(self) -> int:
        """FLOPs in which each weight meets each sample once: a multiplication and an addition."""
        return 2 * self.batch * self.weights


def forward_cost(shape: Shape) -> tuple[int, int]:
    """A forward pass: weights read, activations written."""
    moved = shape.weights + shape.activations
    return shape.itemsize * moved, shape.product


def update_cost(shape: Shape) -> tuple[int, int]:
    """An update: activations read, weights read and written."""
    moved = 2 * shape.weights + shape.activations
    return shape.itemsize * moved, shape.product


def step_cost(shape: Shape, passes: int = 1) -> tuple[int, int]:
    """An ED step, forward and update; with two passes a step of backpropagation."""
    pass_bytes, pass_flops = forward_cost(shape)
    update_bytes, update_flops = update_cost(shape)
    # A backward pass costs what a forward pass does: weights read, as many numbers written.
    return passes * pass_bytes + update_bytes, passes * pass_flops + update_flops


def batch_axis(shape: Shape) -> int:
    """Bytes of the article's (D, 2, 2, B, W, W): every product, before the batch is summed."""
    return shape.itemsize * shape.batch * shape.hidden_weights
