"""What is my training step waiting for? ``report = diagnose.step(step)``."""

from ed_lib.diagnose.diagnosing import step
from ed_lib.diagnose.report import Report

__all__ = ["Report", "step"]
