"""Loss scaling: the loss is multiplied before the backward pass, and the gradients divided after
it.

float16 has no numbers between 0 and 2⁻²⁴, and many gradients lie there. A larger loss makes all of
them larger, by the same factor. If it is too large, some become infinite; then the step is skipped.
Micikevicius and others, "Mixed Precision Training" (2018), section 3.2; how the scale moves is as
in PyTorch.
"""

import ctypes
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ed_lib import check

# From the usual first scale, 2¹⁶, 40 halvings lead to 2⁻²⁴, the smallest number of float16. A loss
# scaled by less starts the backward pass with 0. So by then every scale that could help was tried.
STUCK = 40
SMALLEST = 2.0**-24
# The keys of torch's state.
KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
# Between which numbers each has to lie.
LIMITS = {
    "scale": (0, math.inf),
    "growth_factor": (1, math.inf),
    "backoff_factor": (0, 1),
}


@dataclass
class Progress:
    """How far an optimizer is since the last update(). ``stage``: the last call that it had,
    "unscale_()" or "step()". ``looked_at``: whether it had gradients then; ``finite``: whether they
    are, on the device until step() waits for it.
    """

    stage: str
    finite: Any
    looked_at: bool


class GradScaler:
    """Dynamic loss scaling, with the methods, the arguments and the numbers of
    ``torch.amp.GradScaler``.

    device: "cuda", which without a GPU disables the scaler, with a warning, or "cpu". A disabled
    one passes all on. Calls in a wrong order raise. What torch's has not: ``skipped`` tells whether
    the last ``step`` was; after STUCK skips in a row, down to a scale of 2⁻²⁴, comes a
    FloatingPointError.
    """

    def __init__(
        self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ):  # fmt: skip
        check.choice("device", device, ("cuda", "cpu"))
        self._enabled = enabled and (device == "cpu" or torch.cuda.is_available())
        if enabled and not self._enabled:
            warnings.warn(
                "GradScaler is disabled: there is no GPU. On a CPU, use device='cpu'", stacklevel=2
            )
        values = init_scale, growth_factor, backoff_factor, growth_interval, 0
        self._state = _checked(dict(zip(KEYS, values, strict=True)), "init_scale")
        # {id of an optimizer: how far it is}, of those that had a call since update()
        self._progress: dict[int, Progress] = {}
        # Whether scale() was ever called, and how many updates in a row were skipped.
        self._started = False
        self._skips = 0
        self.skipped = False

    def scale(self, outputs: Any) -> Any:
        """A tensor times the scale, or the tensors in lists, tuples and other iterables, nested at
        will.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            self._started = True
            # A tensor and not a number: it makes a float16 loss () a float32 one, where 2¹⁶ fits.
            scale = torch.full((), self.get_scale(), dtype=torch.float32, device=outputs.device)
            return outputs * scale
        if isinstance(outputs, str) or not isinstance(outputs, Iterable):
            raise TypeError(
                f"outputs has a {type(outputs).__name__}; wanted tensors, or iterables of them"
            )
        scaled = map(self.scale, outputs)
        return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled

    def unscale_(self, optimizer: Any) -> None:
        """Divides the optimizer's gradients by the scale, in place, and looks for inf and NaN: on
        the device, which ``step`` waits for.
        """
        if not self._enabled:
            return
        self._check_order("unscale_()", optimizer, ("unscale_()", "step()"))
        grads = _gradients(optimizer)
        if any(grad.dtype == torch.float16 for grad in grads):
            raise ValueError(
                "a gradient is float16, too small once unscaled; wanted float32 parameters"
            )
        inverse = self._inverse()
        # Three launches for a gradient; isfinite alone would be several. NaN is not below infinity.
        # A gradient of no numbers has no largest one.
        flags = [
            (grad.abs().max() < math.inf).to(grads[0].device) for grad in grads if grad.numel()
        ]
        for grad in grads:
            grad.mul_(inverse)
        finite = torch.stack(flags).all() if flags else True
        self._progress[id(optimizer)] = Progress("unscale_()", finite, looked_at=bool(grads))

    def _inverse(self):
        """1 / scale in float32, as long as that is a number."""
        scale = self.get_scale()
        inverse = _float32(1 / scale) if scale else math.inf
        # torch's goes on, and 0 · inf = NaN ends up in the parameters.
        if inverse == math.inf:
            raise FloatingPointError(f"the scale fell to {scale:g}: 1 / scale is inf in float32")
        return inverse

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step(…)`` and what it returns, or None if a gradient is infinite or NaN.
        Calls ``unscale_`` if that was not done; waits for the device, to see whether to skip.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or any(map(callable, args)):
            raise RuntimeError(
                "step() got a closure, which would compute unscaled gradients; wanted none"
            )
        self._check_order("step()", optimizer, ("step()",))
        unscaled = id(optimizer) in self._progress
        # What unscale_() found counts: gradients that came after it are not unscaled.
        if not (self._progress[id(optimizer)].looked_at if unscaled else _gradients(optimizer)):
            raise RuntimeError(
                "step() came with no gradient in the optimizer; wanted a backward pass before"
            )
        if not unscaled:
            self.unscale_(optimizer)
        progress = self._progress[id(optimizer)]
        # Here the CPU waits for the device, once an iteration.
        progress.finite = bool(progress.finite)
        progress.stage = "step()"
        self.skipped = not progress.finite
        if self.skipped:
            return None
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Sets the next iteration's scale, from what was found or to ``new_scale``; ends this
        iteration.
        """
        if not self._enabled:
            return
        self._check_order("update()")
        found = [bool(each.finite) for each in self._progress.values() if each.looked_at]
        if new_scale is not None:
            self._state = _checked(self._state | {"scale": new_scale}, "new_scale")
        elif found:
            self._adapt(overflow=not all(found))
        else:
            raise RuntimeError(
                "update() came with no gradient looked at; wanted step() or unscale_() before"
            )
        self._progress = {}
        if found:
            self._skips = 0 if all(found) else self._skips + 1
        if self._skips >= STUCK and self.get_scale() <= SMALLEST:
            scale = f"{self.get_scale():g}"
            came = f"{self._skips} updates in a row were skipped, down to a scale of {scale}"
            raise FloatingPointError(f"{came}; look for inf or NaN in inputs, weights and loss")

    def _adapt(self, overflow):
        """Halves the scale after an overflow, doubles it after ``growth_interval`` steps without
        one.
        """
        state = self._state
        # The tracker counts updates without a skip since the scale last changed.
        state["_growth_tracker"] += 1
        if overflow:
            state["scale"] = _float32(state["scale"] * state["backoff_factor"])
            state["_growth_tracker"] = 0
        elif state["_growth_tracker"] == state["growth_interval"]:
            grown = _float32(state["scale"] * state["growth_factor"])
            if math.isfinite(grown):
                state["scale"] = grown
            state["_growth_tracker"] = 0

    def get_scale(self) -> float:
        """The scale, a number; 1.0 if disabled."""
        return self._state["scale"] if self._enabled else 1.0

    def state_dict(self) -> dict:
        """The scale, settings and tracker, in torch's keys; {} if disabled. To be called after
        update().
        """
        return dict(self._state) if self._enabled else {}

    def load_state_dict(self, state_dict: dict) -> None:
        """Goes on from a ``state_dict`` of this class or of torch's."""
        if not self._enabled:
            return
        missing = set(KEYS) - state_dict.keys()
        if missing:
            lacks = ", ".join(sorted(missing))
            raise RuntimeError(f"state_dict lacks {lacks}; wanted all of {KEYS}")
        self._state = _checked({key: state_dict[key] for key in KEYS})
        self._skips = 0

    def _check_order(self, call, optimizer=None, after=()):
        """RuntimeError for a call before any scale(), or after one that it may not follow."""
        if optimizer is not None and not hasattr(optimizer, "step"):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; wanted an optimizer")
        if not self._started:
            raise RuntimeError(
                f"{call} came before any scale(); wanted scale(loss).backward() before"
            )
        progress = self._progress.get(id(optimizer))
        if progress is not None and progress.stage in after:
            raise RuntimeError(
                f"{call} came after {progress.stage} of this optimizer; wanted update() before"
            )


def _gradients(optimizer):
    """The numbers of an optimizer's gradients; of a sparse one those that it holds, as torch's
    scaler takes them.
    """
    found = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                grad = p.grad.detach()
                if grad.is_sparse:
                    # Not values(): it wants a coalesced gradient, and that would be a copy.
                    grad = grad._values()  # noqa: SLF001
                found.append(grad)
    return found


def _checked(state, name="scale"):
    """A scaler's state, its scale as a float32 number, once it is known that one can go on from
    it.
    """
    scale = state["scale"]
    if isinstance(scale, torch.Tensor):
        # RuntimeError if it holds several numbers.
        scale = scale.item()
    state = state | {"scale": _float32(check.positive(name, scale))}
    for key, (least, most) in LIMITS.items():
        if not least < state[key] < most:
            came = f"{name} is {scale}, in float32" if key == "scale" else f"{key} is"
            raise ValueError(f"{came} {state[key]}; wanted a number between {least} and {most}")
    check.count("growth_interval", state["growth_interval"])
    return state


def _float32(number):
    """The number rounded to float32; infinite if it is too large."""
    return ctypes.c_float(number).value
