"""Training on many devices: ranks that talk, ways to split the work among them, and what each costs."""

from ed_lib.parallel.launch import RankError, launch

__all__ = ["RankError", "launch"]
