"""What stands in the tensors of a step, and which line a wait is for."""

import time

import pytest
import torch
from torch.nn import functional

from ed_lib import diagnose
from ed_lib.diagnose import places
from ed_lib.diagnose.contents import Contents

SIZE = 4000  # numbers


def test_subnormal_numbers_are_counted_where_they_are_read():
    """A quarter of them; zeros and normal numbers are none, nor are those of float16."""
    x = torch.ones(SIZE)
    x[: SIZE // 4] = 1e-40
    x[SIZE // 4 : SIZE // 2] = 0
    with Contents() as watch:
        x.sqrt()
        x.half().sqrt()
        torch.ones(SIZE).sqrt()
        x.sqrt_()  # what it reads, not what it leaves
    shares = [call.subnormal for call in watch.calls if call.operator.startswith("sqrt")]
    assert shares == [0.25, 0, 0, 0.25]


@pytest.mark.parametrize("ignored", [0, 3])
def test_rows_without_a_label_are_counted(ignored):
    labels = torch.tensor([1, 0, 2, 1])
    labels[:ignored] = -100
    with Contents() as watch:
        functional.cross_entropy(torch.randn(4, 3), labels)
    assert [call.ignored for call in watch.calls if call.ignored] == ([0.75] if ignored else [])


def test_the_line_that_a_thread_is_at_is_named():
    with places.looked_at() as found:
        time.sleep(0.05)
    place, times = max(found.items(), key=lambda item: item[1])  # before and after it a line or two
    assert place.startswith("test_contents.py:") and times > 5


def test_a_report_names_what_slows_the_loader_and_the_optimizer():
    """Adam's second moment is subnormal where gradients are small."""
    weights = torch.ones(SIZE, requires_grad=True)
    optimizer = torch.optim.Adam([weights], foreach=False)

    def batches():
        while True:
            time.sleep(0.01)
            yield torch.ones(SIZE)

    def step(batch):
        optimizer.zero_grad()
        (1e-20 * weights * batch).sum().backward()
        optimizer.step()

    text = str(diagnose.step(step, batches=batches()))
    assert "waits for batches at: test_contents.py:" in text
    report = diagnose.step(lambda: step(torch.ones(SIZE)), restore=[optimizer])
    roots = [call for call in report.measured.calls if call.operator == "sqrt"]
    assert roots and roots[0].subnormal == 1


def test_a_step_whose_work_varies_a_little_is_diagnosed():
    """As of a mask that chooses now 99, now 100 rows; not one that is half as long."""
    weights = torch.ones(30, 30, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=1e-3)

    def step(rows):
        optimizer.zero_grad()
        (torch.ones(rows, 30) @ weights).sum().backward()
        optimizer.step()

    assert diagnose.step(step, batches=500 * [99, 100]).measured.calls
    with pytest.raises(ValueError, match="FLOPs in one run"):
        diagnose.step(step, batches=500 * [50, 100])
