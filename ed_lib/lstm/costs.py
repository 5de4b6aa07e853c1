"""What a forward pass of an LSTM cannot do without, and what NVIDIA published about it.

Letters: T time steps, B batch, I inputs, H hidden, L layers, D directions.
"""

from dataclasses import dataclass

# GFLOP/s in float32 on a Tesla M40, forward, 100 steps, 512 inputs and hidden, batch 64; of one layer but for
# the last, which is of four. Appleyard, Kočiský and Blunsom (2016), and the blog of the same year.
PUBLISHED = {
    "baseline": 349,
    "combined_gemms": 724,
    "streamed_gemms": 994,
    "fused_pointwise": 1942,
    "pretransposed": 2199,
    "combined_inputs": 2290,
    "wavefront": 3898,
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a run; the defaults are those of the published measurements. itemsize: bytes a number."""

    steps: int = 100
    batch: int = 64
    inputs: int = 512
    hidden: int = 512
    layers: int = 1
    directions: int = 1
    itemsize: int = 4

    def below(self, layer: int) -> int:
        """How many inputs a layer has: I, or the D · H answers of the one below."""
        return self.inputs if layer == 0 else self.directions * self.hidden

    @property
    def weights(self) -> int:
        """Numbers in all weights and biases: 4H (I + H + 2) for each layer and direction."""
        each = (4 * self.hidden * (self.below(n) + self.hidden + 2) for n in range(self.layers))
        return self.directions * sum(each)


def flops(shape: Shape) -> int:
    """Floating-point operations of the products: two for each weight, step and sample, biases among the
    weights; the pointwise work is not counted. One layer of H inputs: 16 T B H (H + 1). NVIDIA's published
    times and rates agree with this to one per cent, which does not tell whether the biases, 0.2 %, are in.
    """
    return 2 * shape.steps * shape.batch * shape.weights


def least_bytes(shape: Shape) -> int:
    """Bytes that a forward pass moves at the least: all weights and the input once, the output once. Nothing
    between the layers and nothing of the state need leave the chip.
    """
    rows = shape.steps * shape.batch
    return shape.itemsize * (shape.weights + rows * (shape.inputs + shape.directions * shape.hidden))
