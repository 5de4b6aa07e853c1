"""The LSTM inside cuDNN: its optimisations rebuilt rung by rung, and what became of its weights."""

from ed_lib.lstm.module import LSTM, RUNGS

__all__ = ["LSTM", "RUNGS"]
