"""Elastic trials for Ray Tune::

    from adaptdl_ray.tune import AdaptDLScheduler, DistributedTrainableCreator

    def train(config):                       # a training function on adaptdl.torch
        ...
        tune.report({"mean_accuracy": accuracy})

    tune.run(DistributedTrainableCreator(train), num_samples=4, scheduler=AdaptDLScheduler())

Trials get more or fewer replicas while they train, as the cluster fills and empties. Their names say it:
``AdaptDLTrainable_<replicas>_<restarts>_<id>``.
"""

from adaptdl_ray._groups import TrainingError, WorkersLost
from adaptdl_ray.tune._create import DistributedTrainableCreator
from adaptdl_ray.tune._scheduler import AdaptDLScheduler
from adaptdl_ray.tune._session import report
from adaptdl_ray.tune._trainable import AdaptDLTrainable

__all__ = ["AdaptDLScheduler", "AdaptDLTrainable", "DistributedTrainableCreator", "TrainingError", "WorkersLost", "report"]
