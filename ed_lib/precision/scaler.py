"""Loss scaling: the loss is multiplied before the backward pass, and the gradients divided after it.

float16 has no numbers between 0 and 2⁻²⁴, and many gradients lie there. A larger loss makes all of them
larger, by the same factor. If it is too large, some become infinite; then the step is skipped. Micikevicius
and others, "Mixed Precision Training" (2018), section 3.2; how the scale moves is as in PyTorch.
"""

import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from ed_lib import check

# From 2¹⁶, 40 halvings lead to 2⁻²⁴, the smallest number of float16: all scales that could help were tried
STUCK, SMALLEST = 40, 2.0**-24
KEYS = "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"  # of torch's state


class GradScaler:
    """Dynamic loss scaling, with the methods, the arguments and the numbers of ``torch.amp.GradScaler``.

    The scale starts at ``init_scale``. After a skip ``update`` multiplies it by ``backoff_factor``; after
    ``growth_interval`` updates in a row without one, by ``growth_factor``, if that is finite in float32.
    device: "cpu", or "cuda", which without a GPU disables the scaler, with a warning. A disabled one passes
    all on. Bad arguments, and calls in a wrong order, raise and change nothing.

    What torch's does not: FloatingPointError after ``STUCK`` skips in a row, when the scale is down to 2⁻²⁴
    or did not fall; and ``skipped`` tells whether the last ``step`` was. It has no sparse gradients, no
    closures, and no short cut for fused optimizers.
    """

    def __init__(
        self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ):  # fmt: skip
        check.choice("device", device, ("cuda", "cpu"))
        if enabled and device == "cuda" and not torch.cuda.is_available():
            warnings.warn("GradScaler is disabled: there is no GPU. On a CPU, use device='cpu'", stacklevel=2)
            enabled = False
        values = init_scale, growth_factor, backoff_factor, growth_interval, 0
        self._state = _checked(dict(zip(KEYS, values, strict=True)), "init_scale")
        self._enabled, self._started = bool(enabled), False  # whether scale() was ever called
        self._finite: dict[int, Any] = {}  # {optimizer unscaled since update(): bool (); None: no gradient}
        self._stepped: set[int] = set()  # those of them that were stepped
        self._skips, self._fell_from, self.skipped = 0, init_scale, False  # skips in a row; the scale before

    def scale(self, outputs: Any) -> Any:
        """A tensor times the scale, or the tensors in lists, tuples and other iterables, nested at will."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            self._started = True  # below, a tensor and not a number: a float16 loss () becomes a float32 one
            return outputs * torch.full((), self.get_scale(), dtype=torch.float32, device=outputs.device)
        if isinstance(outputs, str) or not isinstance(outputs, Iterable):
            raise TypeError(f"outputs has a {type(outputs).__name__}; wanted tensors, or iterables of them")
        scaled = map(self.scale, outputs)
        return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled

    def unscale_(self, optimizer: Any) -> None:
        """Divides the gradients of the optimizer's parameters by the scale, in place; looks for inf and NaN:
        what was found is a tensor on the device, which ``step`` waits for.
        """
        if not self._enabled:
            return
        self._check_order("unscale_()", optimizer)
        if id(optimizer) in self._finite:
            wanted = "step(), update() before"
            raise RuntimeError(f"unscale_() came after unscale_() of this optimizer; wanted {wanted}")
        self._finite[id(optimizer)] = self._unscale(optimizer)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step(*args, **kwargs)`` and what it returns, or None if a gradient is infinite or NaN.
        Calls ``unscale_`` if that was not done; waits for the device, to see whether to skip.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or any(map(callable, args)):
            raise RuntimeError("step() got a closure, which would compute unscaled gradients; wanted none")
        self._check_order("step()", optimizer)
        key = id(optimizer)
        finite = self._finite[key] if key in self._finite else self._unscale(optimizer)
        if finite is None:
            raise RuntimeError("step() came with no gradient in the optimizer; wanted a backward pass before")
        self._finite[key] = bool(finite)  # waits
        result = optimizer.step(*args, **kwargs) if self._finite[key] else None
        self._stepped.add(key)
        self.skipped = not self._finite[key]
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Sets the next iteration's scale, from what was found or to ``new_scale``; ends this iteration."""
        if not self._enabled:
            return
        self._check_order("update()")
        found, before = [bool(f) for f in self._finite.values() if f is not None], self.get_scale()
        if new_scale is not None:
            self._state = _checked(self._state | {"scale": new_scale}, "new_scale")
        elif found:
            self.adapt(overflow=not all(found))
        else:
            raise RuntimeError("update() came with no gradient looked at; wanted step() or unscale_() before")
        self._finite, self._stepped = {}, set()
        if found:
            self._fell_from = self._fell_from if self._skips else before
            self._skips = 0 if all(found) else self._skips + 1
            scale = self.get_scale()
            if self._skips >= STUCK and not SMALLEST < scale < self._fell_from:
                went = f"the scale went from {self._fell_from:g} to {scale:g}"
                tried = "no other would help" if scale <= SMALLEST else "a smaller one may help"
                raise FloatingPointError(
                    f"{self._skips} updates in a row were skipped, and nothing was learned; {went}, {tried}. "
                    "Look for inf or NaN in inputs, weights, loss, and for activations beyond float16"
                )

    def adapt(self, overflow: bool) -> None:
        """Halves the scale after an overflow, doubles it after ``growth_interval`` steps without one."""
        state = self._state
        if overflow:
            state["scale"] = _float32(state["scale"] * state["backoff_factor"])
            state["_growth_tracker"] = 0  # updates without a skip since the scale last changed
            return
        state["_growth_tracker"] += 1
        if state["_growth_tracker"] == state["growth_interval"]:
            grown = _float32(state["scale"] * state["growth_factor"])
            state["scale"] = grown if math.isfinite(grown) else state["scale"]
            state["_growth_tracker"] = 0

    def _unscale(self, optimizer):
        """Divides the gradients → whether all were finite, bool () on their device, or None without any."""
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        grads = [grad.detach() for grad in grads if grad.numel()]
        if any(grad.dtype == torch.float16 for grad in grads):
            fix = "let autocast cast float32 parameters, or step float32 copies (MasterWeights)"
            raise ValueError(f"a gradient is float16, too small once unscaled: {fix}")
        inverse = _float32(1 / self.get_scale()) if self.get_scale() else math.inf
        if inverse == math.inf:  # torch goes on, and 0 · inf = NaN ends up in the parameters
            raise FloatingPointError(f"the scale fell to {self.get_scale():g}: 1 / scale is inf in float32")
        flags = [(grad.abs().max() < math.inf).to(grads[0].device) for grad in grads]  # False for NaN too
        for grad in grads:
            grad.mul_(inverse)
        return torch.stack(flags).all() if flags else None

    def _check_order(self, call, optimizer=None):
        """RuntimeError for a call before any scale(), or after the step of this optimizer."""
        if optimizer is not None and not hasattr(optimizer, "step"):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; wanted an optimizer")
        if not self._started:
            raise RuntimeError(f"{call} came before any scale(); wanted scale(loss).backward() before")
        if id(optimizer) in self._stepped:
            raise RuntimeError(f"{call} came after step() of this optimizer; wanted update() before")

    def get_scale(self) -> float:
        """The scale, a number; 1.0 if disabled."""
        return self._state["scale"] if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        return self._state["growth_factor"]

    def set_growth_factor(self, new_factor: float) -> None:
        self._state = _checked(self._state | {"growth_factor": new_factor})

    def get_backoff_factor(self) -> float:
        return self._state["backoff_factor"]

    def set_backoff_factor(self, new_factor: float) -> None:
        self._state = _checked(self._state | {"backoff_factor": new_factor})

    def get_growth_interval(self) -> int:
        return self._state["growth_interval"]

    def set_growth_interval(self, new_interval: int) -> None:
        """As in torch, an interval that the tracker has passed is not met before the next skip."""
        self._state = _checked(self._state | {"growth_interval": new_interval})

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict:
        """The scale, settings and tracker, in torch's keys; {} if disabled. To be called after update()."""
        return dict(self._state) if self._enabled else {}

    def load_state_dict(self, state_dict: dict) -> None:
        """Goes on from a ``state_dict`` of this class or of torch's."""
        if not self._enabled:
            return
        if missing := set(KEYS) - state_dict.keys():
            raise RuntimeError(f"state_dict lacks {', '.join(sorted(missing))}; wanted an enabled scaler's")
        self._state, self._skips = _checked({key: state_dict[key] for key in KEYS}), 0


class StaticScaler(GradScaler):
    """Loss scaling with one ``scale`` that ``update`` never changes, as in the paper's experiments. All else
    is :class:`GradScaler`'s: a step with inf or NaN is skipped, and STUCK of them in a row raise.
    """

    def __init__(self, scale: float, device: str = "cuda", enabled: bool = True):
        super().__init__(device, scale, enabled=enabled)

    def adapt(self, overflow: bool) -> None:
        """It stays as it is."""


def _checked(state, name="scale"):
    """A scaler's state, its scale as a float32 number, once it is known that one can go on from it."""
    scale = state["scale"].item() if isinstance(state["scale"], torch.Tensor) else state["scale"]
    rounded = _float32(check.positive(name, scale))
    if not 0 < rounded < math.inf:
        raise ValueError(f"{name} is {scale}, which is {rounded} in float32; wanted a finite number above 0")
    if check.positive("growth_factor", state["growth_factor"]) <= 1:
        raise ValueError(f"growth_factor is {state['growth_factor']}; wanted more than 1")
    if check.positive("backoff_factor", state["backoff_factor"]) >= 1:
        raise ValueError(f"backoff_factor is {state['backoff_factor']}; wanted less than 1")
    check.count("growth_interval", state["growth_interval"])
    check.count("_growth_tracker", state["_growth_tracker"], least=0)
    return state | {"scale": rounded}


def _float32(number):
    """The number rounded to float32; infinite if it is too large."""
    return torch.tensor(number, dtype=torch.float64).float().item()
