"""Processes that compute for this one: how they start, what is said of one that fails, and how they end.

:mod:`ed_lib.parallel.launch` makes ranks of them, :mod:`ed_lib.parallel.workers` the workers of a server.
"""

import os
import pickle
import signal
import sys
import threading
import traceback
from multiprocessing import get_context, parent_process

GRACE = 0.5  # seconds that the others have to report, once one has failed, or to leave, once all is done


def pickled(fn, args=()):
    """The call ``fn(*args)`` as bytes, to be sent to a process.

    TypeError for what is no function, and for anything that pickle cannot send; ValueError for a function
    that another process cannot import, with what to do.
    """
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}; wanted a function")
    name, module = getattr(fn, "__qualname__", ""), getattr(fn, "__module__", None)
    if "<" in name:
        raise ValueError(f"fn is {name!r}, which no other process can import; wanted one at a module's top")
    if module == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(
            f"fn is {name!r}, defined in a notebook's cell or at the prompt, where no other process can "
            f"import it. Write it into a file, with `%%writefile ranks.py` at the top of the cell, and pass "
            f"`ranks.{name}` after `import ranks`"
        )
    for what, value in {"fn": fn, **{f"argument {n} of fn": arg for n, arg in enumerate(args)}}.items():
        try:
            pickle.dumps(value)
        except Exception as error:
            raise TypeError(f"{what} is {value!r}, which pickle cannot send to a process: {error}") from error
    return pickle.dumps((fn, args))


def start(target, *args, name):
    """``target(channel, *args)`` in a new process → the process, and our end of the channel.

    It ends when this process does, however that may be.
    """
    context = get_context("spawn")  # a fork would inherit threads and locks of OpenMP and CUDA, and hang
    ours, theirs = context.Pipe()
    process = context.Process(target=_begin, args=(target, theirs, *args), name=name)
    process.start()
    theirs.close()  # so that ours ends when the process does
    return process, ours


def stop(process, channel):
    """Ends a process, whatever it does, and returns once it is gone."""
    process.kill()
    process.join()
    channel.close()


def ending(code):
    """How a process ended that has this exit code and gave no result, as words."""
    if code < 0:
        return f"was ended by the signal {signal.Signals(-code).name}, without a result"
    hint = "; in a script, launch stands under `if __name__ == '__main__':`" if code == 1 else ""
    return f"exited with code {code}, without a result{hint}"


def error_text(error, file):
    """Its traceback as text, without the frames that it starts with in ``file``, the caller's own."""
    where = error.__traceback__
    while where.tb_next and where.tb_frame.f_code.co_filename == file:
        where = where.tb_next
    return "".join(traceback.format_exception(type(error), error, where))


def one_thread():
    """Leaves one thread to what computes in this process, so that several do not share the cores."""
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)  # NumPy's products


def _begin(target, channel, *args):
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target(channel, *args)


def _end_with_parent():
    parent_process().join()
    os._exit(1)
