"""A hook of pytest: a notebook's cell fails where IPython knows no such magic.

IPython only prints a UsageError, so that nbval passes the cell, whatever else stands in it. The
tests load this by conftest.py; `make colab` copies it beside the chapters, as their conftest.py.
"""

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    done = yield
    for output in getattr(item, "test_outputs", None) or ():
        text = output.get("text", "")
        if output.get("name") == "stderr" and "UsageError" in text:
            item.raise_cell_error("A magic was not run", text)
    return done
