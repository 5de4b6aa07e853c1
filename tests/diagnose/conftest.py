"""A diagnosis that takes as few steps as it may, on a machine whose prices are made up: what is
tested is what was counted, and that all is put back.
"""

import pytest

from ed_lib.diagnose import diagnosing, operators
from tests.diagnose import made_up


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(diagnosing, "SECONDS", 0.0)
    monkeypatch.setattr(operators, "prices", lambda device: made_up.prices(device))
