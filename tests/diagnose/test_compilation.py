"""What the compiler's counters become, on counters that are made up."""

import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from ed_lib.diagnose.compilation import LONGEST, compilation


@pytest.fixture
def counted(monkeypatch):
    """What stands in place of the compiler: its counters and its metrics, to be filled."""
    utils = SimpleNamespace(counters={"stats": Counter(), "graph_break": Counter()}, metrics=[])
    utils.get_compilation_metrics = lambda: utils.metrics
    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace(utils=utils))
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    return utils


def test_without_the_compiler_nothing_is_told(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    assert compilation() is None
    assert "torch._dynamo.utils" not in sys.modules


def test_a_compiler_that_has_compiled_nothing_tells_nothing(counted):
    assert compilation() is None


def test_graphs_breaks_and_why_it_compiled_again(counted):
    counted.counters["stats"]["unique_graphs"] = 3
    counted.counters["graph_break"] |= {"call of print()\nand its stack": 2, "x" * 500: 1}
    reasons = [None, "0/0: x's size is 4, not 8\nmore", "1/0: x's size is 4, not 8", "1/1: y"]
    counted.metrics += [SimpleNamespace(recompile_reason=why) for why in reasons]
    found = compilation()
    assert found.graphs == 3
    assert found.breaks == {"call of print()": 2, "x" * LONGEST: 1}
    assert found.recompilations == {"x's size is 4, not 8": 2, "y": 1}
