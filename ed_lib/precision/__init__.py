"""Training and running networks in fewer bits: number formats, mixed precision, and smaller
models.
"""

from ed_lib.precision.autocasting import autocast
from ed_lib.precision.scaler import GradScaler

__all__ = ["GradScaler", "autocast"]
