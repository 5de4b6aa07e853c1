"""ED learning (Kaneko's error diffusion, 1999): networks that learn from one broadcast error."""

from ed_lib.ed.network import EDNetwork

__all__ = ["EDNetwork"]
