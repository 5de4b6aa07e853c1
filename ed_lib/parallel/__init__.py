"""Training on many devices: ranks that talk, ways to split the work among them, and what each
costs.
"""

from ed_lib.parallel.collectives import Traffic, all_reduce
from ed_lib.parallel.launcher import RankError, launch

__all__ = ["RankError", "Traffic", "all_reduce", "launch"]
