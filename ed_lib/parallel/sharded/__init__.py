"""When a model does not fit a device: what training it holds, and that shared out over the ranks."""

from ed_lib.parallel.sharded.zero import STAGES, shard

__all__ = ["STAGES", "shard"]
