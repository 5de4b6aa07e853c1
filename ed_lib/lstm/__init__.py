"""The LSTM inside cuDNN: its optimisations rebuilt rung by rung, and what became of its weights."""

from ed_lib.lstm.module import BEYOND, LSTM, RUNGS

__all__ = ["BEYOND", "LSTM", "RUNGS"]
