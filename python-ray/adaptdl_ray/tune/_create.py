"""From a training function to a trainable class."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Optional

from adaptdl_ray.tune._trainable import AdaptDLTrainable

__all__ = ["DistributedTrainableCreator"]


def DistributedTrainableCreator(func: Callable[..., Any], *, num_workers: int = 1, min_replicas: int = 1,
                                max_replicas: Optional[int] = None, num_cpus_per_worker: float = 1,
                                num_gpus_per_worker: Optional[float] = None, backend: Optional[str] = None,
                                checkpoint_interval_s: Optional[int] = None, stop_timeout_s: float = 300,
                                use_gpu: Optional[bool] = None) -> type[AdaptDLTrainable]:
    """Makes a Tune trainable of a training function on :mod:`adaptdl.torch`.

    Every replica of a trial runs the function, in a process of its own that has met the others already:
    ``adaptdl.torch.init_process_group`` need not be called. It may return in the middle of a loop over data.

    Args:
        func: ``func(config)`` or ``func(config, checkpoint_dir=None)``. It reports with ``tune.report``, and what
            it keeps between restarts is in AdaptDL's loops, loaders, models and states.
        num_workers: How many replicas a new trial starts with.
        min_replicas: While a trial runs it has at least so many.
        max_replicas: It never has more; None: no limit but the cluster.
        num_cpus_per_worker: CPUs of one replica.
        num_gpus_per_worker: GPUs of one replica; None: one on a cluster with GPUs, else none.
        backend: Of ``torch.distributed``; None: "nccl" with GPUs, else "gloo"; "none": no ``torch.distributed``, for a
            function that has only :mod:`adaptdl.collective` and :mod:`adaptdl.checkpoint`.
        checkpoint_interval_s: Seconds between the checkpoints that a crash goes back to; None: AdaptDL's default.
        stop_timeout_s: How long a trial that is to be resized may take to its checkpoint; after that it goes on
            from the previous one.
        use_gpu: As in Ray 1.x: False is ``num_gpus_per_worker=0``, True is 1.

    Returns:
        A class for ``tune.run`` or ``tune.Tuner``, to be used with :class:`AdaptDLScheduler`.
    """
    if not callable(func):
        raise TypeError(f"func must be a function, not {type(func).__name__}")
    try:
        inspect.signature(func).bind({})
    except TypeError as error:
        raise TypeError(f"func must take the trial's config as its only positional argument: {error}") from None
    if use_gpu is not None and num_gpus_per_worker is None:
        num_gpus_per_worker = int(use_gpu)
    _check("num_workers", num_workers, 1)
    _check("min_replicas", min_replicas, 0)
    if max_replicas is not None:
        _check("max_replicas", max_replicas, max(min_replicas, 1))
    if num_cpus_per_worker < 0 or (num_gpus_per_worker or 0) < 0 or not (num_cpus_per_worker or num_gpus_per_worker):
        raise ValueError(f"a replica must take some CPU or GPU: num_cpus_per_worker={num_cpus_per_worker!r}, "
                         f"num_gpus_per_worker={num_gpus_per_worker!r}")
    if not min_replicas <= num_workers <= (max_replicas or num_workers):
        raise ValueError(f"num_workers={num_workers} must be from min_replicas={min_replicas} to "
                         f"max_replicas={max_replicas}")
    options = {
        "num_workers": num_workers, "min_replicas": min_replicas, "max_replicas": max_replicas,
        "num_cpus_per_worker": num_cpus_per_worker, "num_gpus_per_worker": num_gpus_per_worker,
        "backend": backend, "checkpoint_interval_s": checkpoint_interval_s, "stop_timeout_s": stop_timeout_s,
    }
    attributes = {"function": staticmethod(func), "options": options, "__module__": __name__, "__doc__": func.__doc__}
    return type("AdaptDLTrainable", (AdaptDLTrainable,), attributes)


def _check(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}, not {value!r}")
