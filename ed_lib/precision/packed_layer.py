"""Layers of few bits whose codes lie in memory as one kind of processor reads them."""

from typing import Any

from torch import Tensor, nn


class PackedHere(nn.Module):
    """A layer whose ``codes`` also lie in memory as the processor at hand reads them: ``packed``.

    Each kind of processor has a layout of its own, and what is laid out does not say which. So
    only the codes are saved, copied and pickled; pack() lays them out anew where they arrive.
    """

    codes: Tensor
    packed: Any

    def __init__(self):
        super().__init__()
        self.register_load_state_dict_post_hook(_pack_anew)

    def pack(self) -> None:
        """Lays the codes out for this processor."""
        raise NotImplementedError

    def __getstate__(self):
        state = super().__getstate__()
        del state["packed"]
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self.pack()


def buffer_of(tensor: Tensor | None) -> Any:
    """A buffer with the numbers of a tensor, if there is one. It is a copy, since a state that is
    loaded is written into it.
    """
    return None if tensor is None else nn.Buffer(tensor.detach().clone())


def _pack_anew(layer, _):
    # By its name, and no lambda: a layer is pickled with its hooks.
    layer.pack()
