"""Learning from directions that arrive late, as in a pipeline that never waits: on one device, exactly."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from ed_lib import check
from ed_lib.ed import EDNetwork, learner


def delays(depth: int, stages: int, method: str = "ed") -> np.ndarray:
    """By how many steps each of the depth + 2 layers of weights is late in a pipeline that never waits.

    Stage s of p learns from a batch after it has gone forward with so many later ones. Backpropagation (by
    1F1B without a flush): p − 1 − s, since the gradient comes back stage by stage. "ed": half of that,
    rounded up, since the error goes to all stages at once and an update takes about as long as a forward
    pass.
    """
    if check.count("stages", stages) > max(1, depth):
        raise ValueError(f"stages is {stages}; wanted at most {max(1, depth)}, a hidden layer for each")
    of_hidden = [s for s, part in enumerate(np.array_split(np.arange(depth), stages)) for _ in part]
    stage = np.array([0, *of_hidden, stages - 1])  # of each layer of weights
    behind = stages - 1 - stage
    return (behind + 1) // 2 if method == "ed" else behind


class Delayed(learner.Learner):
    """A :class:`ed_lib.ed.learner.Learner` whose layer l learns from the direction of ``late[l]`` steps ago.

    The direction was found with the weights of that time, as a pipeline finds it that keeps them for its
    backward pass; ED needs to keep none, since its direction takes only what the cells answered. late: a
    whole number ≥ 0 for each of the depth + 2 layers of weights, as :func:`delays` gives it. Before a
    direction has arrived, a layer stays as it is (under Adam its moments see a zero).
    """

    def __init__(
        self, net: EDNetwork, method: str = "ed", optimizer: str = "sgd", rate: float = 0.1, *,
        late: Sequence[int] | np.ndarray,
    ):  # fmt: skip
        super().__init__(net, method, optimizer, rate)
        check.shape("late", np.shape(late), (net.depth + 2,))
        self.late = [check.count("late", n, least=0) for n in late]
        self.found: deque[dict[str, torch.Tensor]] = deque(maxlen=max(self.late) + 1)  # the last directions

    def find_direction(self, error: torch.Tensor) -> None:
        """Puts the direction that has arrived into each parameter's ``grad``: error (B, K) of this step."""
        super().find_direction(error)
        parameters = self.net.parameters
        self.found.append({name: parameter.grad.clone() for name, parameter in parameters.items()})
        for name, parameter in parameters.items():
            for layer, late in enumerate(self.late):
                if (place := learner.part(name, layer, self.net.depth)) is not None:
                    arrived = self.found[-1 - late][name][place] if late < len(self.found) else 0
                    parameter.grad[place] = arrived
