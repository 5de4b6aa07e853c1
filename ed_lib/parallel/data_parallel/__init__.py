"""Every device has the whole model and a part of the batch: in one process, then over ranks."""

from ed_lib.parallel.data_parallel.replica import Replica

__all__ = ["Replica"]
