"""What a training function sees of Tune: report and get_checkpoint, in Ray's present form and in that of
Ray 1.x, ``tune.report(mean_accuracy=acc)``."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

from ray.train._internal import session as ray_session

__all__ = ["Session", "report"]


def report(_metrics: Optional[Mapping[str, Any]] = None, *, checkpoint: Any = None, **metrics: Any) -> None:
    """Report a result to Tune, from a training function.

    Args:
        _metrics: The result, as Ray's present ``tune.report`` takes it.
        checkpoint: A ``ray.tune.Checkpoint`` of the function's own. AdaptDL's states (models, optimizers,
            loaders, epochs) need none: they are saved anyway.
        **metrics: The result as Ray 1.x took it: ``report(mean_accuracy=0.9)``.
    """
    session = ray_session.get_session()
    if session is None:
        raise RuntimeError("report: only a training function that Tune runs can report results")
    session.report({**(_metrics or {}), **metrics}, checkpoint=checkpoint)


class Session:
    """The session that ``ray.tune.report``, ``ray.tune.get_checkpoint`` and ``ray.tune.get_context`` look for in
    this process, while the training function runs.

    Args:
        facts: What Tune says of the trial, by name.
        folder: What the function saved last; None: nothing.
        send: Called with each result and its checkpoint.
    """

    world_rank = local_rank = node_rank = world_size = local_world_size = None
    dataset_shard = metadata = run_id = None

    def __init__(self, facts: Mapping[str, Any], folder: Optional[str],
                 send: Callable[[dict, Any], None]) -> None:
        from ray.train import Checkpoint
        self.__dict__.update(facts)
        self.loaded_checkpoint = Checkpoint.from_directory(folder) if folder else None
        self._send = send

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None, **unused: Any) -> None:
        if not isinstance(metrics, Mapping):
            raise TypeError(f"report: metrics must be a dict, not {type(metrics).__name__}")
        if checkpoint is not None:
            self.loaded_checkpoint = checkpoint
        self._send(dict(metrics), checkpoint)

    def __enter__(self) -> "Session":
        import ray.tune
        self._before = ray_session._session, getattr(ray.tune, "report", None)
        ray_session._session = self
        ray.tune.report = report
        return self

    def __exit__(self, *unused: Any) -> None:
        import ray.tune
        ray_session._session, ray.tune.report = self._before
