"""A transformer whose attention and whose perceptrons can be taught by ED.

B stretches of text in a batch, T characters in each, V characters in the vocabulary, C channels.
The error is e = softmax − target, (B, T, V), divided by B·T.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ed_lib import check
from ed_lib.ed.relatives import broadcast
from ed_lib.transformer import Transformer, mean_loss

RULES = ("backprop", "broadcast", "frozen")


class EDTransformer(Transformer):
    """A :class:`ed_lib.transformer.Transformer`, each part of which is taught by a rule.

    attention, mlp: how these are taught. "backprop": by the gradient of the loss. "broadcast", ED's
    way: each channel of what they answer is told the e of one character, times the channel's fixed
    sign; in the perceptrons the cells between their two layers too, so that each weight learns from
    what its two ends know. "frozen": not at all. The embedding is taught as attention is; the
    scores' weights always have their gradient. The rest is as in a Transformer.
    """

    def __init__(
        self,
        vocabulary: int,
        context: int = 64,
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        *,
        attention: str = "backprop",
        mlp: str = "backprop",
        rate: float = 1e-3,
        steps: int = 2000,
        seed: int = 0,
    ):
        check.choice("attention", attention, RULES)
        check.choice("mlp", mlp, RULES)
        sizes = vocabulary, context, layers, heads, width
        super().__init__(*sizes, rate=rate, steps=steps, seed=seed)
        self.rules = {"embedding": attention}  # of each part that answers
        for n in range(layers):
            self.rules[f"{n}.answer"] = attention
            self.rules[f"{n}.up"] = mlp
            self.rules[f"{n}.down"] = mlp
        self.rules["scores"] = "backprop"

    def learn(self, x: Tensor, target: Tensor) -> float:
        """x and target (B, T) → the mean loss. Each weight's ``grad`` becomes what the optimizer is
        to follow. The ``grad`` of a weight that does not learn becomes None. Each rule moves the
        weights of its own parts, and no others.
        """
        check.shape("target", tuple(target.shape), tuple(x.shape))
        answers = self.answers(x)
        loss = mean_loss(answers["scores"], target)
        self.optimizer.zero_grad()
        self.descend(loss, [part for part, rule in self.rules.items() if rule == "backprop"])
        probabilities = answers["scores"].detach().softmax(2)  # (B, T, V)
        error = (probabilities - F.one_hot(target, self.vocabulary)) / target.numel()
        for part, rule in self.rules.items():
            if rule == "broadcast":
                # For each number of the part's output, one error times a sign: (B, T, C)
                told = broadcast(error, answers[part].shape[2])
                self.descend(answers[part], [part], told)
        return loss.item()

    def descend(self, output: Tensor, parts: list[str], told: Tensor | None = None) -> None:
        """Lets the weights of these parts descend the gradient of a loss, or of an output times
        what it is told.
        """
        names = [name for part in parts for name in weights_of(part)]
        weights = [self.parameters[name] for name in names]
        # One pass went forward; each part that is told something goes back through its own piece.
        again = "broadcast" in self.rules.values()
        gradients = torch.autograd.grad(output, weights, told, retain_graph=again)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient


def weights_of(part: str) -> list[str]:
    """The parameters with which a part answers, from what it is given."""
    if part == "embedding":
        return ["embedding", "places"]
    if part.endswith(".answer"):
        return [part.replace(".answer", ".ask"), part]
    return [part]
