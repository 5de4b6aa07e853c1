"""The BLAS behind NumPy's products, held to the thread that asks."""

import functools
from contextlib import AbstractContextManager


def alone() -> AbstractContextManager:
    """A context in which every matrix product runs on the thread that asks for it.

    Compiled code fills the threads itself. A BLAS that takes threads of its own meanwhile, or keeps them
    spinning after an earlier product, makes it several times slower.
    """
    return _libraries().limit(limits=1, user_api="blas")


@functools.cache
def _libraries():
    import scipy.linalg.cython_blas  # noqa: F401  the BLAS that Numba's np.dot calls, which has to be loaded
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
