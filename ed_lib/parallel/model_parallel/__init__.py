"""A model cut over devices, by its layers (a pipeline) or inside them, and the schedules for it."""

from ed_lib.parallel.model_parallel.pipeline import Pipeline

__all__ = ["Pipeline"]
