"""Small helpers for programs."""

import functools
import traceback

__all__ = ["print_exc"]


def print_exc(function):
    """Decorator: exceptions of the function are printed with their traceback, then raised as before. For
    functions whose caller swallows exceptions, such as threads and callbacks of other libraries.

    Args:
        function (Callable): The function to wrap.

    Returns:
        Callable: A function of the same signature.
    """
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception:
            traceback.print_exc()
            raise
    return wrapper
