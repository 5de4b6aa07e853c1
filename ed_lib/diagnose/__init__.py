"""What is my training step waiting for? ``report = diagnose.step(step)``."""

from ed_lib.diagnose.diagnosing import step
from ed_lib.diagnose.report import Diagnosis

__all__ = ["Diagnosis", "step"]
