"""Has the program been asked to stop? For programs that want to know before the loop over data stops them.
The handlers are installed by ``adaptdl.torch.init_process_group``, not by importing this."""

from adaptdl import _core

__all__ = ["get_exit_flag"]


def get_exit_flag():
    """Has SIGTERM or SIGINT arrived? The job then stops at the next step, on all replicas.

    Returns:
        bool: True from then on.
    """
    return _core.stop_wanted()


def __getattr__(name):
    if name == "EXIT_FLAG":
        return get_exit_flag()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
