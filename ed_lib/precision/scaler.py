"""Loss scaling: the loss is multiplied before the backward pass, and the gradients divided after it.

float16 has no numbers between 0 and 2⁻²⁴, and many gradients lie there. A larger loss makes all of them
larger, by the same factor. If it is too large, some become infinite; then the step is skipped. Micikevicius
and others, "Mixed Precision Training" (2018), section 3.2; how the scale moves is as in PyTorch.
"""

import functools
import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from ed_lib import check

# From the usual first scale, 2¹⁶, 40 halvings lead to 2⁻²⁴, the smallest number of float16. A loss scaled by
# less starts the backward pass with 0. So by then every scale that could help has been tried.
STUCK = 40
SMALLEST = 2.0**-24

READY, UNSCALED, STEPPED = "nothing", "unscale_()", "step()"  # what an optimizer had since update()


class GradScaler:
    """Dynamic loss scaling, with the methods, the arguments and the numbers of ``torch.amp.GradScaler``.

    ::

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # only if gradients are looked at or clipped
        scaler.step(optimizer)  # skipped if a gradient is infinite or NaN
        scaler.update()

    The scale starts at ``init_scale``. After a skip ``update`` multiplies it by ``backoff_factor``; after
    ``growth_interval`` updates in a row without one, by ``growth_factor``, if that is finite in float32.
    device: "cpu", or "cuda", which without a GPU disables the scaler, with a warning. A disabled one passes
    all on. Bad arguments, and calls in a wrong order, raise and change nothing.

    torch's does not do these: warn once when the scale falls below 1; raise FloatingPointError after
    ``STUCK`` skips in a row, when the scale is down to 2⁻²⁴ or did not fall; tell by ``skipped`` whether the
    last ``step`` was skipped, so that a scheduler can be kept from stepping.
    It lacks sparse gradients, closures, and the fused optimizers' short cut: it steps them like the others.
    """

    def __init__(
        self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ):  # fmt: skip
        check.choice("device", device, ("cuda", "cpu"))
        if enabled and device == "cuda" and not torch.cuda.is_available():
            warnings.warn("GradScaler is disabled: there is no GPU. On a CPU, use device='cpu'", stacklevel=2)
            enabled = False
        self._enabled = bool(enabled)
        self._scale = _check_scale("init_scale", init_scale)
        self.set_growth_factor(growth_factor)
        self.set_backoff_factor(backoff_factor)
        self.set_growth_interval(growth_interval)
        self._tracker = 0  # updates without a skip since the scale last changed
        self._turns: dict[int, _Turn] = {}  # by the optimizer's id, since the last update()
        self._started = False  # whether scale() was ever called
        self._skips, self._fell_from = 0, self._scale  # updates with a skip in a row; the scale before them
        self._warned = self.skipped = False

    def scale(self, outputs: Any) -> Any:
        """A tensor times the scale, or the tensors in lists, tuples and other iterables, nested at will."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            self._started = True  # below, a tensor and not a number: it makes a float16 loss () a float32 one
            return outputs * torch.full((), self._scale, dtype=torch.float32, device=outputs.device)
        if isinstance(outputs, str) or not isinstance(outputs, Iterable):
            raise TypeError(f"outputs has a {type(outputs).__name__}; wanted tensors, or iterables of them")
        scaled = map(self.scale, outputs)
        return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled

    def unscale_(self, optimizer: Any) -> None:
        """Divides the gradients of the optimizer's parameters by the scale, in place; looks for inf and NaN.

        Does not wait for the device: what was found is a tensor there, which ``step`` waits for.
        """
        if not self._enabled:
            return
        turn = self._turn(optimizer, "unscale_()")
        if turn.stage != READY:
            wanted = "step(), update() before" if turn.stage == UNSCALED else "update() before"
            raise RuntimeError(f"unscale_() came after {turn.stage} of this optimizer; wanted {wanted}")
        turn.unscale(self._scale)
        self._turns[id(optimizer)] = turn

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step(*args, **kwargs)`` and what it returns, or None if a gradient is infinite or NaN.

        Calls ``unscale_`` if that was not done. Waits for the device, to see whether to skip.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or any(map(callable, args)):
            raise RuntimeError("step() got a closure, which would compute unscaled gradients; wanted none")
        turn = self._turn(optimizer, "step()")
        if turn.stage == STEPPED:
            raise RuntimeError("step() came after step() of this optimizer; wanted update() before")
        if turn.stage == READY:
            turn.unscale(self._scale)
        if not turn.finite:
            raise RuntimeError("step() came with no gradient in the optimizer; wanted a backward pass before")
        self._turns[id(optimizer)] = turn
        result = None if turn.overflow else optimizer.step(*args, **kwargs)
        turn.stage, self.skipped = STEPPED, turn.overflow
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Sets the next iteration's scale, from what was found or to ``new_scale``; ends this iteration."""
        if not self._enabled:
            return
        self._check_started("update()")
        checked = [turn for turn in self._turns.values() if turn.finite]
        overflow = any([turn.overflow for turn in checked])
        before = self._scale
        if new_scale is not None:
            self._scale = _check_scale("new_scale", new_scale)
        elif checked:
            self.adapt(overflow)
        else:
            raise RuntimeError("update() came with no gradient looked at; wanted step() or unscale_() before")
        self._turns = {}
        if checked:
            self._watch(before, overflow, checked)

    def adapt(self, overflow: bool) -> None:
        """Halves the scale after an overflow, doubles it after ``growth_interval`` steps without one."""
        if overflow:
            self._scale, self._tracker = _float32(self._scale * self._backoff_factor), 0
            return
        self._tracker += 1
        if self._tracker == self._growth_interval:
            grown = _float32(self._scale * self._growth_factor)
            self._scale = grown if math.isfinite(grown) else self._scale
            self._tracker = 0

    def _watch(self, before, overflow, turns):
        """Warns of a scale that falls below 1, and stops a run in which nothing but skips is to come."""
        self._fell_from = before if self._skips == 0 else self._fell_from
        self._skips = self._skips + 1 if overflow else 0
        if before >= 1 > self._scale and not self._warned:
            self._warned = True
            message = f"the loss scale fell to {self._scale:g}: gradients overflow that are not enlarged"
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        if self._skips >= STUCK and (self._scale <= SMALLEST or self._scale >= self._fell_from):
            places = [turn.place(*at) for turn in turns for at, finite in turn.finite.items() if not finite]
            more = f"; and {len(places) - 8} more" if len(places) > 8 else ""
            tried = "no other would help" if self._scale <= SMALLEST else "a smaller one may help"
            raise FloatingPointError(
                f"{self._skips} updates in a row were skipped, and nothing was learned. The scale went from "
                f"{self._fell_from:g} to {self._scale:g}; {tried}. Gradients with inf or NaN: "
                f"{'; '.join(places[:8])}{more}. Look for inf or NaN in inputs, parameters and loss (log(0), "
                "a division by 0, too large a learning rate), and for activations that only bfloat16 can hold"
            )

    def _turn(self, optimizer, method):
        if not hasattr(optimizer, "step"):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; wanted an optimizer")
        self._check_started(method)
        return self._turns.get(id(optimizer)) or _Turn(optimizer)

    def _check_started(self, method):
        if not self._started:
            raise RuntimeError(f"{method} came before any scale(); wanted scale(loss).backward() before")

    def get_scale(self) -> float:
        """The scale, a number; 1.0 if disabled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        if check.positive("growth_factor", new_factor) <= 1:
            raise ValueError(f"growth_factor is {new_factor}; wanted more than 1")
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        if check.positive("backoff_factor", new_factor) >= 1:
            raise ValueError(f"backoff_factor is {new_factor}; wanted less than 1")
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """As in torch, an interval that the tracker has passed is not met before the next skip."""
        self._growth_interval = check.count("growth_interval", new_interval)

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict:
        """The scale, settings and tracker, in torch's keys; {} if disabled. To be called after update()."""
        if not self._enabled:
            return {}
        settings = ("growth_factor", "backoff_factor", "growth_interval")
        state = {key: getattr(self, f"_{key}") for key in settings}
        return {"scale": self._scale, **state, "_growth_tracker": self._tracker}

    def load_state_dict(self, state_dict: dict) -> None:
        """Goes on from a ``state_dict`` of this class or of torch's."""
        if not self._enabled:
            return
        if missing := self.state_dict().keys() - state_dict.keys():
            raise RuntimeError(f"state_dict lacks {', '.join(sorted(missing))}; wanted an enabled scaler's")
        *settings, tracker = [state_dict[key] for key in self.state_dict()]
        new = GradScaler("cpu", *settings)  # raises before anything changes
        self._tracker = check.count("_growth_tracker", tracker, least=0)
        self._growth_factor, self._backoff_factor = new._growth_factor, new._backoff_factor
        self._scale, self._growth_interval, self._skips = new._scale, new._growth_interval, 0


class StaticScaler(GradScaler):
    """Loss scaling with one ``scale`` that ``update`` never changes, as in the paper's experiments.

    A step with inf or NaN is skipped, an option that the paper names; STUCK of them in a row raise. All else
    is :class:`GradScaler`'s; ``update(new_scale)`` does set another scale.
    """

    def __init__(self, scale: float, device: str = "cuda", enabled: bool = True):
        super().__init__(device, scale, enabled=enabled)

    def adapt(self, overflow: bool) -> None:
        """It stays as it is."""


class _Turn:
    """What happened to one optimizer since the last update()."""

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self.stage = READY
        self.finite: dict[tuple[int, int], torch.Tensor] = {}  # by group and index: whether that gradient is

    def unscale(self, scale):
        """Fills ``finite``, then divides the gradients by the scale."""
        gradients = self._gradients()
        inverse = _float32(1 / scale) if scale else math.inf
        if inverse == math.inf:  # torch goes on, and 0 · inf = NaN ends up in the parameters
            raise FloatingPointError(f"the scale fell to {scale:g}: 1 / scale is infinite in float32")
        for where, gradient in gradients.items():
            self.finite[where] = gradient.abs().max() < math.inf  # False for NaN too
            gradient.mul_(inverse)
        self.stage = UNSCALED

    def _gradients(self):
        """{(group, index): gradient} of the parameters that have one."""
        found = {}
        for i, group in enumerate(self.optimizer.param_groups):
            for j, parameter in enumerate(group["params"]):
                if parameter.grad is None or parameter.grad.numel() == 0:
                    continue
                if parameter.grad.dtype == torch.float16:
                    fix = "let autocast cast float32 parameters, or step float32 copies (MasterWeights)"
                    raise ValueError(
                        f"{self.place(i, j)} has a float16 gradient, too small once unscaled: {fix}"
                    )
                if parameter.grad.layout != torch.strided:
                    raise ValueError(f"{self.place(i, j)} has a sparse gradient; wanted a dense one")
                found[i, j] = parameter.grad.detach()
        return found

    @functools.cached_property
    def overflow(self):
        """Whether any gradient was infinite or NaN. Waits for the device."""
        flags = list(self.finite.values())
        return not bool(torch.stack([flag.to(flags[0].device) for flag in flags]).all())

    def place(self, i, j):
        """A parameter, for a message."""
        shape = tuple(self.optimizer.param_groups[i]["params"][j].shape)
        return f"{type(self.optimizer).__name__}'s group {i}, parameter {j}, shape {shape}"


def _float32(number):
    """The number rounded to float32; infinite if it is too large."""
    return torch.tensor(number, dtype=torch.float64).float().item()


def _check_scale(name, scale):
    """The scale as a float32 number, once it is known to be positive and finite there."""
    scale = scale.item() if isinstance(scale, torch.Tensor) else scale  # RuntimeError if it holds several
    rounded = _float32(check.positive(name, scale))
    if not 0 < rounded < math.inf:
        raise ValueError(f"{name} is {scale}, which is {rounded} in float32; wanted a finite number above 0")
    return rounded
