"""The call that :mod:`.launcher` sends to other processes, as bytes."""

import io
import pickle
import sys
from typing import Any


def pickled(fn: Any, args: tuple) -> bytes:
    """The call ``fn(*args)`` as bytes. TypeError, ValueError say what cannot be sent, and what to
    do.
    """
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}; wanted a function")
    sent = io.BytesIO()
    try:
        _Sender(sent, fn).dump((fn, args))
    except _InACell as found:
        raise ValueError(str(found)) from None
    except Exception as error:
        wanted = (
            "wanted a function at a module's top, and arguments that pickle can send to a process"
        )
        raise TypeError(f"fn is {fn!r}, with {len(args)} argument(s); {wanted}: {error}") from error
    return sent.getvalue()


class _InACell(Exception):
    """A function or a class that no other process can import."""


class _Sender(pickle.Pickler):
    """Pickles functions and classes by their names, as pickle does. A name that a notebook's cell
    defines means nothing to the other process: _InACell, wherever in the call it stands.
    """

    def __init__(self, file, fn):
        super().__init__(file)
        self.fn = fn

    def reducer_override(self, value):
        """What pickle asks of each object that is no number, no text and no plain container."""
        # A notebook, and the prompt, run in a __main__ without a file.
        if not hasattr(sys.modules["__main__"], "__file__") and _is_of_main(value):
            name = value.__qualname__
            what = "fn is" if value is self.fn else "fn or an argument holds"
            raise _InACell(
                f"{what} {name!r}, defined in a notebook's cell or at the prompt, where no other "
                "process can import it. Write it into a file, with `%%writefile ranks.py` at the "
                f"top of the cell, and pass `ranks.{name}` after `import ranks`"
            )
        # As pickle does it by itself.
        return NotImplemented


def _is_of_main(value):
    """Whether it is a function or a class that is defined there; an instance has no such name."""
    named = isinstance(getattr(value, "__qualname__", None), str)
    return named and getattr(value, "__module__", None) == "__main__"
