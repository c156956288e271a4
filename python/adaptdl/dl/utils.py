"""Small helpers for programs with runners."""

from adaptdl.dl.checkpoint import load_checkpoint
from adaptdl.dl.engine import default_engine, to_device
from adaptdl.dl.runner import set_global_seed

__all__ = ["any2device", "get_available_engine", "get_device", "load_checkpoint", "set_global_seed"]

any2device = to_device


def get_available_engine(cpu=False, fp16=False, ddp=False, amp=False, apex=False):
    """The engine for what the machine has.

    Args:
        cpu (bool): Whether to leave GPUs alone.
        fp16, amp, apex (bool or str): Mixed precision.
        ddp (bool): Whether to use a process for each GPU.
    """
    return default_engine(cpu, amp or fp16 or apex, ddp)


def get_device():
    """The device of the engine for what the machine has."""
    return default_engine().device
