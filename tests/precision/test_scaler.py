"""The loss scaler against torch's, bit for bit: over random sequences, over every order of calls,
and past the point where torch's would go on for ever.
"""

import itertools
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ed_lib.precision import scaler as module
from ed_lib.precision.scaler import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = (3, 5), (7,), (), (0, 2)  # of an optimizer's parameters


class Side:
    """A scaler with optimizers of its own, all of it a function of ``seed`` and of the scaler's
    class.
    """

    def __init__(self, scaler, seed, dtype=torch.float32):
        rng, self.scaler, self.steps = np.random.default_rng(seed), scaler, []
        of = {"dtype": dtype, "device": DEVICE, "requires_grad": True}
        self.parameters = [
            [torch.tensor(rng.normal(size=s), **of) for s in SHAPES] for _ in range(2)
        ]
        self.optimizers = [
            torch.optim.SGD(self.parameters[0], lr=0.1, momentum=0.9),
            torch.optim.AdamW(self.parameters[1], lr=0.01, weight_decay=0.1),
        ]
        for optimizer in self.optimizers:
            optimizer.register_step_post_hook(lambda *_: self.steps.append(1))

    def backward(self, which, coefficients):
        """The gradient of parameter i of optimizer ``which`` is the scale times coefficients[i]."""
        losses = [
            (p * c.to(p)).sum() for p, c in zip(self.parameters[which], coefficients, strict=True)
        ]
        half = len(losses) // 2
        torch.autograd.backward(self.scaler.scale([sum(losses[:half]), sum(losses[half:])]))

    def numbers(self):
        """{what: every bit of it} of parameters, gradients, the optimizers' states, the scaler's."""
        found = {}
        for which, optimizer in enumerate(self.optimizers):
            for i, p in enumerate(self.parameters[which]):
                at = f"optimizer {which}, parameter {i}"
                found[at] = p.detach()
                found[f"{at}, gradient"] = p.grad
                for key, value in optimizer.state.get(p, {}).items():
                    found[f"{at}, {key}"] = value
        bits = {at: bytes_of(value) for at, value in found.items() if value is not None}
        return bits | self.scaler.state_dict()


def bytes_of(value):
    return value.double().cpu().numpy().tobytes() if torch.is_tensor(value) else value


def told(value):
    """Bytes as the numbers that they are."""
    return np.frombuffer(value).tolist() if isinstance(value, bytes) else value


def assert_same(found, wanted, when):
    """Equal bit for bit; else it says which call came last, and which tensors differ by what."""
    off = [at for at in found | wanted if found.get(at) != wanted.get(at)]
    lines = [f"{at}: {told(found.get(at))}, wanted {told(wanted.get(at))}" for at in off]
    assert not off, "\n".join([f"after {when}:", *lines])


def twins(seed, dtype=torch.float32, **arguments):
    ours, theirs = GradScaler(DEVICE, **arguments), torch.amp.GradScaler(DEVICE, **arguments)
    return Side(ours, seed, dtype=dtype), Side(theirs, seed, dtype=dtype)


def coefficients(rng, bad):
    """One tensor per parameter; with ``bad``, some number of one of them is not finite."""
    made = [torch.tensor(rng.normal(size=s) * 10.0 ** rng.integers(-9, 4)) for s in SHAPES]
    if bad:
        flat = made[rng.integers(3)].view(-1)
        flat[rng.integers(len(flat))] = rng.choice([math.inf, -math.inf, math.nan])
    return made


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "seed", [*(pytest.param(n, marks=pytest.mark.gpu) for n in range(3)), *range(3, 9)]
)
def test_random_runs_equal_torch_bit_for_bit(seed, dtype):
    try:
        numbers = (
            torch.ones((), dtype=kind, device=DEVICE)
            for kind in (dtype, torch.float32, torch.float32)
        )
        torch._amp_foreach_non_finite_check_and_unscale_([next(numbers)], *numbers)
    except NotImplementedError as error:  # by PyTorch 2.11 on a GPU, for bfloat16
        pytest.skip(str(error))
    rng = np.random.default_rng(seed)
    arguments = dict(
        init_scale=float(2.0 ** rng.integers(0, 20) if seed % 2 else rng.uniform(0.5, 1e6)),
        growth_factor=float(rng.choice([2.0, 1.1, 3.7])),
        backoff_factor=float(rng.choice([0.5, 0.3, 0.9])),
        growth_interval=int(rng.integers(1, 6)),
    )
    sides = twins(seed, dtype, **arguments)
    steps, skips = 0, 0
    for iteration in range(40):
        used = [0, 1] if rng.random() < 0.7 else [int(rng.integers(2))]
        explicit, clipped, stepped = (rng.random(2) < 0.5 for _ in range(3))
        stepped[used[0]] = True
        for which in used:
            backwards = [coefficients(rng, rng.random() < 0.15) for _ in range(rng.integers(1, 3))]
            taken = []
            for side in sides:
                optimizer = side.optimizers[which]
                optimizer.zero_grad()
                for c in backwards:
                    side.backward(which, c)
                if explicit[which]:
                    side.scaler.unscale_(optimizer)
                    if clipped[which]:
                        torch.nn.utils.clip_grad_norm_(side.parameters[which], 1.0)
                if stepped[which]:
                    side.steps.clear()
                    side.scaler.step(optimizer)
                    taken.append(len(side.steps))
            when = f"iteration {iteration}, optimizer {which}: unscaled {explicit[which]}, "
            when += f"clipped {clipped[which]}, stepped {stepped[which]}"
            assert_same(sides[0].numbers(), sides[1].numbers(), when)
            if taken:
                assert taken[0] == taken[1] == 1 - sides[0].scaler.skipped
                steps, skips = steps + 1, skips + sides[0].scaler.skipped
        new_scale = float(2.0 ** rng.integers(0, 20)) if rng.random() < 0.05 else None
        for side in sides:
            side.scaler.update(new_scale)
        when = f"iteration {iteration}, update({new_scale})"
        assert_same(sides[0].numbers(), sides[1].numbers(), when)
        assert sides[0].scaler.get_scale() == sides[1].scaler.get_scale()
        if (
            rng.random() < 0.2
        ):  # each goes on from the other's state, its interval perhaps passed; pickled
            states, interval = [side.scaler.state_dict() for side in sides], int(rng.integers(1, 6))
            if rng.random() < 0.5:
                sides[0].scaler, sides[1].scaler = GradScaler(DEVICE), torch.amp.GradScaler(DEVICE)
            for side, state in zip(sides, reversed(states), strict=True):
                side.scaler.load_state_dict(state | {"growth_interval": interval})
                side.scaler = pickle.loads(pickle.dumps(side.scaler))
    assert 2 < skips < steps - 2


@pytest.mark.oracle
@example(
    overflows=4 * [False],
    init_scale=2.0**126,
    growth_factor=2.0,
    backoff_factor=0.5,
    growth_interval=1,
)
@settings(max_examples=150, deadline=None)
@given(
    overflows=st.lists(st.booleans(), min_size=1, max_size=60),
    init_scale=st.floats(2.0**-60, 2.0**127, width=32),
    growth_factor=st.floats(1.001, 1e6),
    backoff_factor=st.floats(0.3, 0.999),
    growth_interval=st.integers(1, 5),
)
def test_scale_and_tracker_equal_torch(overflows, **arguments):
    ours, theirs = GradScaler("cpu", **arguments), torch.amp.GradScaler("cpu", **arguments)
    first, right = ours.get_scale(), theirs.get_scale()  # torch rounds at the first scale()
    assert first == pytest.approx(right, rel=1e-7)
    p = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.0)
    in_a_row = 0
    for overflow in overflows:
        for scaler in (ours, theirs):
            scaler.scale(p * 1.0)
            p.grad = torch.tensor([math.inf if overflow else 0.0])
            scaler.step(optimizer)
        theirs.update()
        in_a_row = in_a_row + 1 if overflow else 0
        if in_a_row >= module.STUCK and theirs.get_scale() <= 2.0**-24:
            with pytest.raises(FloatingPointError):
                ours.update()
        else:
            ours.update()
        assert ours.state_dict() == theirs.state_dict()
        assert ours.skipped == overflow


CALLS = {
    "backward": lambda s: [
        s.backward(i, coefficients(np.random.default_rng(i), False)) for i in (0, 1)
    ],
    "zero_grad": lambda s: [optimizer.zero_grad() for optimizer in s.optimizers],
    "unscale": lambda s: s.scaler.unscale_(s.optimizers[0]),
    "step": lambda s: s.scaler.step(s.optimizers[0]),
    "other": lambda s: s.scaler.step(s.optimizers[1]),
    "update": lambda s: s.scaler.update(),
    "update to": lambda s: s.scaler.update(128.0),
}
STARTS = [(), ("backward",), ("backward", "unscale"), ("backward", "step")]
STARTS += [("backward", "step", "other"), ("backward", "unscale", "step", "update")]


@pytest.mark.oracle
@pytest.mark.gpu
def test_every_order_of_calls_raises_where_torch_raises_and_changes_nothing():
    """From each start, every order of up to two calls; one that raises is not gone on with."""
    raised, todo = set(), [(start, 2) for start in STARTS]
    while todo:
        calls, left = todo.pop()
        for call in CALLS:
            ours, theirs = twins(0)
            for side, earlier in itertools.product((ours, theirs), calls):
                CALLS[earlier](side)
            before, inside = ours.numbers(), str(vars(ours.scaler))
            when = ", ".join([*calls, call])
            try:
                CALLS[call](theirs)
            except (AssertionError, RuntimeError):
                with pytest.raises(RuntimeError) as caught:
                    CALLS[call](ours)
                assert_same(ours.numbers(), before, when)
                assert str(vars(ours.scaler)) == inside, when
                raised.add(str(caught.value))
            else:
                CALLS[call](ours)
                assert_same(ours.numbers(), theirs.numbers(), when)
                if left > 1:
                    todo.append(((*calls, call), left - 1))
    assert raised == {
        "step() came before any scale(); wanted scale(loss).backward() before",
        "unscale_() came before any scale(); wanted scale(loss).backward() before",
        "update() came before any scale(); wanted scale(loss).backward() before",
        "unscale_() came after unscale_() of this optimizer; wanted update() before",
        "unscale_() came after step() of this optimizer; wanted update() before",
        "step() came after step() of this optimizer; wanted update() before",
        "update() came with no gradient looked at; wanted step() or unscale_() before",
        "step() came with no gradient in the optimizer; wanted a backward pass before",
    }


@pytest.mark.oracle
@pytest.mark.gpu
def test_scale_takes_what_torchs_takes():
    ours, theirs = GradScaler(DEVICE, 3.0), torch.amp.GradScaler(DEVICE, 3.0)
    nests = [lambda x: x, lambda x: [x], lambda x: (x, [x, (x,)]), lambda x: []]
    nests += [lambda x: (y for y in (x, [x])), lambda x: {"a": x}.values()]
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64):
        for shape, nest in itertools.product(((), (3,), (0,), (2, 3)), nests):
            x = torch.ones(shape, dtype=dtype, device=DEVICE)
            pairs = ours.scale(nest(x)), theirs.scale(nest(x))
            assert type(pairs[0]) is type(pairs[1])
            pairs = [list(p) if isinstance(p, map) else p for p in pairs]
            torch.testing.assert_close(*pairs, rtol=0, atol=0)


def looked_up(scaler, rows, value, steps=3):
    """An embedding whose gradients are sparse, and its scaler, after so many steps. The rows that
    are looked up may be the same ones, or none.
    """
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(5, 2, sparse=True, device=DEVICE)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        numbers = embedding(torch.tensor(rows, dtype=torch.long, device=DEVICE))
        scaler.scale((numbers * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return embedding.weight.detach(), scaler.state_dict()


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("value", [0.25, math.inf, math.nan])
@pytest.mark.parametrize("rows", [[1, 1, 3], [4], []], ids=str)
def test_sparse_gradients_are_taken_as_torchs_scaler_takes_them(rows, value):
    mine, state = looked_up(GradScaler(DEVICE), rows, value)
    theirs, wanted = looked_up(torch.amp.GradScaler(DEVICE), rows, value)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert state == wanted and state["scale"] == 2.0**16 / (8 if rows and value != 0.25 else 1)


@pytest.mark.oracle
@pytest.mark.gpu
def test_a_gradient_without_numbers_is_one_that_was_looked_at():
    for scaler in (GradScaler(DEVICE), torch.amp.GradScaler(DEVICE)):
        p = torch.ones(0, 2, requires_grad=True, device=DEVICE)
        optimizer = torch.optim.SGD([p], lr=0.1)
        scaler.scale(p.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.state_dict()["_growth_tracker"] == 1, type(scaler)


def test_step_passes_arguments_on_and_returns_what_the_optimizer_returns():
    class Echo(torch.optim.SGD):
        def step(self, *args, **kwargs):
            return args, kwargs

    p = torch.ones(2, requires_grad=True)
    echo, scaler = Echo([p], lr=1.0), GradScaler("cpu")
    scaler.scale(p.sum()).backward()
    assert scaler.step(echo, 1, key="word") == ((1,), {"key": "word"})
    scaler.update()
    p.grad.fill_(math.nan)
    assert scaler.step(echo, 1) is None
    scaler.update()
    for words, named in (((), {"closure": None}), ((lambda: 1.0,), {})):
        with pytest.raises(RuntimeError, match="closure"):
            scaler.step(echo, *words, **named)


def test_disabled_it_passes_everything_through():
    p = torch.ones(2, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([p], lr=1.0), GradScaler("cpu", enabled=False)
    loss = p.sum()
    assert scaler.scale(loss) is loss and scaler.get_scale() == 1.0
    loss.backward()
    scaler.update()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.step(optimizer, closure=None)
    assert torch.equal(p, torch.full((2,), -1.0))
    assert scaler.state_dict() == {} and scaler.load_state_dict({"scale": 5}) is None
    assert scaler.get_scale() == 1.0 and not scaler.skipped


@pytest.mark.oracle
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_default_disables_itself_as_torchs_does_and_says_so():
    with pytest.warns(UserWarning, match="use device='cpu'"):
        assert GradScaler().get_scale() == 1
    with pytest.warns(UserWarning):
        assert not torch.amp.GradScaler().is_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert GradScaler(enabled=False).get_scale() == 1


@pytest.mark.oracle
@pytest.mark.gpu
def test_a_fused_optimizer_does_what_torchs_scaler_makes_it_do():
    def run(scaler):
        torch.manual_seed(0)
        p = torch.randn(9, device=DEVICE).requires_grad_()
        optimizer = torch.optim.Adam([p], lr=0.1, fused=True)
        for i in range(6):
            optimizer.zero_grad()
            scaler.scale((p * p * (math.inf if i == 2 else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return p.detach(), scaler.state_dict()

    (p, state), (wanted, wanted_state) = run(GradScaler(DEVICE)), run(torch.amp.GradScaler(DEVICE))
    torch.testing.assert_close(p, wanted, rtol=1e-6, atol=0)
    assert state == wanted_state


def overflowing(scaler, updates, value=math.inf):
    """``updates`` updates whose gradients all overflow; the parameters and optimizer."""
    p, q = torch.ones(3, 2, requires_grad=True), torch.ones(5, requires_grad=True)
    optimizer = torch.optim.Adam(
        [{"params": [torch.ones(1, requires_grad=True), q]}, {"params": [p]}]
    )
    for _ in range(updates):
        optimizer.zero_grad()
        scaler.scale(q.sum() + (p * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return p, q, optimizer


@pytest.mark.oracle
@pytest.mark.parametrize("backoff, value, updates", [
    (0.5, math.inf, 40), (0.5, math.nan, 40), (0.9, math.inf, 264),
])  # fmt: skip
def test_after_so_many_skips_in_a_row_it_stops_and_a_clean_step_starts_anew(
    backoff, value, updates
):
    """Where the scale has fallen by 2⁻⁴⁰, to 2⁻²⁴: 0.9^264 < 2⁻⁴⁰ < 0.9^263."""
    ours, theirs = (
        kind("cpu", backoff_factor=backoff) for kind in (GradScaler, torch.amp.GradScaler)
    )
    for scaler in (ours, theirs):
        p, q, optimizer = overflowing(scaler, updates - 1, value)
        assert (
            torch.equal(p, torch.ones(3, 2))
            and torch.equal(q, torch.ones(5))
            and not optimizer.state
        )
    assert ours.state_dict() == theirs.state_dict() and ours.get_scale() > 2.0**-24
    overflowing(ours, 1, 1.0)
    ours.update(2.0**16)
    overflowing(ours, updates - 1, value)
    with pytest.raises(FloatingPointError, match=f"^{updates} updates in a row were skipped"):
        overflowing(ours, 1, value)
    assert ours.get_scale() <= 2.0**-24


@pytest.mark.oracle
def test_a_scale_whose_inverse_is_infinite_is_not_used_where_torch_destroys_the_parameters():
    p, q = (torch.ones(2, requires_grad=True) for _ in range(2))
    ours, theirs = (
        kind("cpu", init_scale=2.0**-130) for kind in (GradScaler, torch.amp.GradScaler)
    )
    for scaler, each in ((ours, p), (theirs, q)):
        scaler.scale((each * torch.tensor([0.0, 1.0])).sum()).backward()
    theirs.step(torch.optim.SGD([q], lr=0.1))
    assert not q.isfinite().any()
    with pytest.raises(FloatingPointError, match="1 / scale is inf in float32"):
        ours.step(torch.optim.SGD([p], lr=0.1))
    assert torch.equal(p, torch.ones(2))


@pytest.mark.oracle
@pytest.mark.gpu
def test_float16_gradients_are_refused_where_torch_refuses_them():
    p = torch.ones(3, requires_grad=True, device=DEVICE)
    half = torch.ones(2, 4, dtype=torch.float16, requires_grad=True, device=DEVICE)
    optimizer = torch.optim.SGD([{"params": [p]}, {"params": [half]}], lr=1.0)
    for scaler in (GradScaler(DEVICE), torch.amp.GradScaler(DEVICE)):
        for method in (scaler.unscale_, scaler.step):
            optimizer.zero_grad()
            scaler.scale(p.sum() + half.float().sum()).backward()
            message = "wanted float32 parameters|Attempting to unscale FP16"
            with pytest.raises(ValueError, match=message):
                method(optimizer)
            assert torch.equal(p.grad, torch.full_like(p, 2.0**16))  # nothing was unscaled
        half.grad = None
        scaler.step(optimizer)  # a float16 parameter without a gradient is none of its business
        p.data.fill_(1.0)
