"""The environment of a replica: the ADAPTDL_* variables, checked, or their defaults.

A launcher or the scheduler sets them. Programs that torchrun or Slurm's srun started have theirs in the place of
ADAPTDL_NUM_REPLICAS, ADAPTDL_REPLICA_RANK and what goes with them. A malformed value raises ``ValueError`` with the variable's name
and value. Once the process group is initialized its own values are returned, so that arguments given
there count and later changes of the environment do not.
"""

import sys

from adaptdl import _core

__all__ = [
    "adaptdl_sched_version", "checkpoint_path", "from_ray", "job_id", "local_rank", "master_addr", "master_port",
    "num_nodes", "num_replicas", "num_restarts", "replica_rank", "share_path", "supervisor_url",
    "tensorboard_logdir",
]


def checkpoint_path():
    """Directory of the job's checkpoints (``ADAPTDL_CHECKPOINT_PATH``).

    Returns:
        str or None: the path; None when unset, and then nothing is saved.
    """
    return _core.env()["checkpoint_path"]


def share_path():
    """Directory that all replicas share, for the program's own files, such as downloaded data
    (``ADAPTDL_SHARE_PATH``).

    Returns:
        str or None: the path; None when unset.
    """
    return _core.env()["share_path"]


def job_id():
    """The job's name in its cluster, "namespace/name" (``ADAPTDL_JOB_ID``).

    Returns:
        str or None: the name; None outside a cluster.
    """
    return _core.env()["job_id"]


def master_addr():
    """Address of the replica of rank 0 (``ADAPTDL_MASTER_ADDR``). In a cluster the variable is not set:
    the supervisor is asked, and after initialization this is what it answered.

    Returns:
        str: the address; "0.0.0.0" when unset.
    """
    return _core.env()["master_addr"]


def master_port():
    """Port at which the replica of rank 0 listens (``ADAPTDL_MASTER_PORT``).

    Returns:
        int: the port; 0 when unset, which is fine for a single replica.
    """
    return _core.env()["master_port"]


def replica_rank():
    """This replica's number, from 0 to ``num_replicas() - 1`` (``ADAPTDL_REPLICA_RANK``).

    Returns:
        int: the rank; 0 when unset.
    """
    return _core.env()["replica_rank"]


def local_rank():
    """This replica's number among those of its machine (``ADAPTDL_LOCAL_RANK``, or ``LOCAL_RANK`` of torchrun,
    ``SLURM_LOCALID`` of Slurm), for programs that choose a GPU by it. The scheduler shows each replica its own GPUs
    alone and sets nothing.

    Returns:
        int: the number; 0 when unset.
    """
    return _core.env()["local_rank"]


def num_nodes():
    """How many machines the job runs on (``ADAPTDL_NUM_NODES``); only needed when some of them run more
    than one replica.

    Returns:
        int: the number of nodes; ``num_replicas()`` when unset.
    """
    return _core.env()["num_nodes"]


def num_replicas():
    """How many replicas the job has, over all machines (``ADAPTDL_NUM_REPLICAS``).

    Returns:
        int: the number of replicas; 1 when unset.
    """
    return _core.env()["num_replicas"]


def num_restarts():
    """How often the job was restarted so far (``ADAPTDL_NUM_RESTARTS``).

    Returns:
        int: the number of restarts; 0 when unset.
    """
    return _core.env()["num_restarts"]


def adaptdl_sched_version():
    """Version of the scheduler that started the job (``ADAPTDL_SCHED_VERSION``). Another major version
    than this package's is refused when the process group is initialized.

    Returns:
        str or None: the version; None when unset.
    """
    return _core.env()["sched_version"]


def supervisor_url():
    """Where the scheduler's supervisor answers (``ADAPTDL_SUPERVISOR_URL``): it tells replicas where rank
    0 is, and takes the job's hints.

    Returns:
        str or None: the URL; None outside a cluster.
    """
    return _core.env()["supervisor_url"]


def tensorboard_logdir():
    """Where to write TensorBoard's event files (``ADAPTDL_TENSORBOARD_LOGDIR``).

    Returns:
        str or None: the path; None when unset.
    """
    return _core.env()["tensorboard_logdir"]


def from_ray():
    """Is this process part of a Ray cluster?

    Returns:
        bool: True once the program has initialized Ray.
    """
    ray = sys.modules.get("ray")
    return bool(ray is not None and ray.is_initialized())
