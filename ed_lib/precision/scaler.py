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
from typing import Any

import torch

from ed_lib import check

# From 2¹⁶ so many halvings lead to 2⁻²⁴, the smallest number of float16: no other scale is left
STUCK = 40
KEYS = (
    "scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "_growth_tracker",
)  # of torch's state


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
        self._stage: dict[int, str] = {}  # {optimizer: the last that it had since update()}
        self._finite: dict[
            int, Any
        ] = {}  # {optimizer: whether its gradients are, on the device or here}
        self._started, self._skips, self.skipped = (
            False,
            0,
            False,
        )  # scale() was called; skips in a row

    def scale(self, outputs: Any) -> Any:
        """A tensor times the scale, or the tensors in lists, tuples and other iterables, nested at
        will.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            self._started = (
                True  # below, a tensor and not a number: a float16 loss () becomes a float32 one
            )
            return outputs * torch.full(
                (), self.get_scale(), dtype=torch.float32, device=outputs.device
            )
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
        if (
            inverse := _float32(1 / (self.get_scale() or 1e-99))
        ) == math.inf:  # torch: 0 · inf = NaN
            raise FloatingPointError(
                f"the scale fell to {self.get_scale():g}: 1 / scale is inf in float32"
            )
        flags = [
            (grad.abs().max() < math.inf).to(grads[0].device) for grad in grads
        ]  # False for NaN too
        for grad in grads:
            grad.mul_(inverse)
        self._stage[id(optimizer)] = "unscale_()"
        self._finite[id(optimizer)] = torch.stack(flags).all() if flags else None

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
        if (
            self._finite.get(id(optimizer), _gradients(optimizer) or None) is None
        ):  # of unscale_, or now
            raise RuntimeError(
                "step() came with no gradient in the optimizer; wanted a backward pass before"
            )
        if id(optimizer) not in self._stage:
            self.unscale_(optimizer)
        self._finite[id(optimizer)] = bool(self._finite[id(optimizer)])  # waits, once
        self._stage[id(optimizer)], self.skipped = "step()", not self._finite[id(optimizer)]
        return None if self.skipped else optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Sets the next iteration's scale, from what was found or to ``new_scale``; ends this
        iteration.
        """
        if not self._enabled:
            return
        self._check_order("update()")
        found = [bool(finite) for finite in self._finite.values() if finite is not None]
        if new_scale is not None:
            self._state = _checked(self._state | {"scale": new_scale}, "new_scale")
        elif found:
            self._adapt(overflow=not all(found))
        else:
            raise RuntimeError(
                "update() came with no gradient looked at; wanted step() or unscale_() before"
            )
        self._stage, self._finite = {}, {}
        if found:
            self._skips = 0 if all(found) else self._skips + 1
        if self._skips >= STUCK and self.get_scale() <= 2.0**-24:
            scale = f"{self.get_scale():g}"
            came = f"{self._skips} updates in a row were skipped, down to a scale of {scale}"
            raise FloatingPointError(f"{came}; look for inf or NaN in inputs, weights and loss")

    def _adapt(self, overflow):
        """Halves the scale after an overflow, doubles it after ``growth_interval`` steps without
        one.
        """
        state = self._state
        state["_growth_tracker"] += 1  # updates without a skip since the scale last changed
        if overflow:
            state["scale"] = _float32(state["scale"] * state["backoff_factor"])
            state["_growth_tracker"] = 0
        elif state["_growth_tracker"] == state["growth_interval"]:
            grown = _float32(state["scale"] * state["growth_factor"])
            state["scale"] = grown if math.isfinite(grown) else state["scale"]
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
        if missing := self._enabled and set(KEYS) - state_dict.keys():
            raise RuntimeError(
                f"state_dict lacks {', '.join(sorted(missing))}; wanted all of {KEYS}"
            )
        if self._enabled:
            self._state, self._skips = _checked({key: state_dict[key] for key in KEYS}), 0

    def _check_order(self, call, optimizer=None, after=()):
        """RuntimeError for a call before any scale(), or after one that it may not follow."""
        if optimizer is not None and not hasattr(optimizer, "step"):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; wanted an optimizer")
        if not self._started:
            raise RuntimeError(
                f"{call} came before any scale(); wanted scale(loss).backward() before"
            )
        if (stage := self._stage.get(id(optimizer))) in after:
            raise RuntimeError(
                f"{call} came after {stage} of this optimizer; wanted update() before"
            )


def _gradients(optimizer):
    """An optimizer's gradients that hold numbers."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [p.grad.detach() for p in parameters if p.grad is not None and p.grad.numel()]


def _checked(state, name="scale"):
    """A scaler's state, its scale as a float32 number, once it is known that one can go on from
    it.
    """
    scale = state["scale"].item() if isinstance(state["scale"], torch.Tensor) else state["scale"]
    state = state | {"scale": _float32(check.positive(name, scale))}
    limits = {"scale": (0, math.inf), "growth_factor": (1, math.inf), "backoff_factor": (0, 1)}
    for key, (least, most) in limits.items():
        if not least < state[key] < most:
            came = f"{name} is {scale}, in float32" if key == "scale" else f"{key} is"
            raise ValueError(f"{came} {state[key]}; wanted a number between {least} and {most}")
    check.count("growth_interval", state["growth_interval"])
    return state


def _float32(number):
    """The number rounded to float32; infinite if it is too large."""
    return ctypes.c_float(number).value
