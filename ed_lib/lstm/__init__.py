"""The LSTM inside cuDNN: its optimisations rebuilt rung by rung, and what became of its weights."""

from ed_lib.lstm.module import BEYOND, LSTM, ON_CPU, RUNGS

__all__ = ["BEYOND", "LSTM", "ON_CPU", "RUNGS"]
