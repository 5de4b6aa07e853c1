"""Training in which no worker waits for another: servers, workers, and what it does to SGD."""

from ed_lib.parallel.asynchronous.servers import ModelQueue, ParameterServer, SynchronousServer

__all__ = ["ModelQueue", "ParameterServer", "SynchronousServer"]
