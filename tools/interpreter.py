"""A mend of Triton 3.6's interpreter, for the tests on a CPU."""


def mend():
    """Lets Triton's interpreter count a kernel's loops; does nothing where Triton is missing or newer.

    There a scalar is an array with one element, and ``range`` asks it for ``__index__``. Up to 3.6 that is
    int() of the array, which NumPy refuses from 2.5 on unless it has no dimensions; Triton 3.7 squeezes it
    first. Every start of a kernel sets that method anew, so what sets it is followed by ours.
    """
    try:
        import triton
        from triton.runtime import interpreter
    except ImportError:
        return
    if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7):
        return
    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_and_mend
