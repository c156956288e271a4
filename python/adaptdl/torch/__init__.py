"""Elastic training with PyTorch: loops, data loaders and data parallelism that survive restarts on
another number of replicas, with batch sizes and learning rates that adapt while they run::

    import adaptdl.torch as adl

    adl.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = adl.AdaptiveDataParallel(model, optimizer, scheduler)
    loader = adl.AdaptiveDataLoader(dataset, batch_size=128, shuffle=True, drop_last=True)
    loader.autoscale_batch_size(4096, local_bsz_bounds=(32, 512))
    for epoch in adl.remaining_epochs_until(90):
        for inputs, targets in loader:
            ...
        scheduler.step()

Importing this module changes nothing in the process: signals and connections begin with
:func:`init_process_group`.
"""

import atexit
import logging
import re
import sys
from urllib.parse import urlsplit

import torch
import torch.distributed

from adaptdl import _core, collective, env  # noqa: F401 (programs have always found them by this import)
from adaptdl.torch import _world, accumulator, parallel, scaling_rules
from adaptdl.torch.accumulator import Accumulator
from adaptdl.torch.data import AdaptiveDataLoader, ElasticSampler, current_dataloader
from adaptdl.torch.epoch import current_epoch, finished_epochs, remaining_epochs_until
from adaptdl.torch.parallel import AdaptiveDataParallel
from adaptdl.torch.trainer import AdaptDLTorchTrainer

__all__ = [
    "init_process_group",
    "Accumulator",
    "AdaptDLTorchTrainer",
    "AdaptiveDataLoader",
    "AdaptiveDataParallel",
    "ElasticSampler",
    "current_dataloader",
    "current_epoch",
    "finished_epochs",
    "remaining_epochs_until",
]

LOG = logging.getLogger(__name__)


def init_process_group(backend, init_method=None, world_size=None, rank=None):
    """Meet the other replicas: starts AdaptDL's collectives and ``torch.distributed``'s default process
    group. Once, before :class:`AdaptiveDataParallel`. From here on SIGTERM and SIGINT (CTRL-C) stop the
    training at the next step, with a checkpoint and exit code 143.

    Arguments that are None come from the environment: ``ADAPTDL_MASTER_ADDR``, ``ADAPTDL_MASTER_PORT``,
    ``ADAPTDL_NUM_REPLICAS`` and ``ADAPTDL_REPLICA_RANK``, or the supervisor of a cluster. Without any of
    them the program is a job of one replica.

    Args:
        backend (str or Backend): ``"nccl"`` for GPUs, else ``"gloo"``.
        init_method (str, optional): ``"tcp://address:port"`` of the replica of rank 0.
        world_size (int, optional): How many replicas there are.
        rank (int, optional): This replica's number, from 0 to ``world_size - 1``.

    Raises:
        ValueError: If an argument or a variable is wrong.
        RuntimeError: If there is a process group already.
        TimeoutError: If the replicas did not come together.
    """
    if torch.distributed.is_initialized():
        raise RuntimeError("torch.distributed is initialized already; call "
                           "adaptdl.torch.init_process_group instead of torch's, and once")
    address, port = _parse(init_method)
    _show_messages()
    _core.context_start(master_addr=address, master_port=port, replica_rank=rank,
                        num_replicas=world_size, signals=True)
    try:
        _world.start(backend)
        accumulator.bind_all()
    except BaseException as error:
        _core.context_abandon(f"torch.distributed: {error}")
        raise
    atexit.register(_leave)


#: A version by the rules of semantic versioning.
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
                      r"(-(0|[1-9]\d*|\d*[a-zA-Z-][\da-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][\da-zA-Z-]*))*)?"
                      r"(\+[\da-zA-Z-]+(\.[\da-zA-Z-]+)*)?")


def version_check(version):
    """Is this the version of a release, to be compared with others?

    Args:
        version (str): For example ``adaptdl.env.adaptdl_sched_version()``.

    Returns:
        bool: False for None, for what is no semantic version, and for 0.0.0.
    """
    return version is not None and version != "0.0.0" and _VERSION.fullmatch(version) is not None


def _parse(init_method):
    """Address and port of "tcp://address:port"."""
    if init_method is None or init_method == "env://":
        return None, None
    url = urlsplit(init_method)
    try:
        port = url.port
    except ValueError:
        port = None
    if url.scheme != "tcp" or not url.hostname or port is None:
        raise ValueError(f"init_method must be \"tcp://address:port\", not {init_method!r}")
    return url.hostname, port


def _leave():
    """At exit: torch's group ends before ours, unless the program failed, when peers may be gone."""
    if not hasattr(sys, "last_type"):
        _world.leave()


def _show_messages():
    """A program that has not set up logging sees the package's messages anyway."""
    logger = logging.getLogger("adaptdl")
    if not logging.root.handlers and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
