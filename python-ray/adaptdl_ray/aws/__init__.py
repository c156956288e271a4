"""One elastic training job on a Ray cluster of rented machines.

``adaptdl_on_ray_aws`` packs a program, starts a :class:`Controller` on the head node and shows what it prints. The
controller asks the autoscaler for machines, starts a worker for each replica, checkpoints and starts them anew
when there are more or fewer machines, and leaves a machine that is going to be taken away in time.
"""

from adaptdl_ray.aws.controller import Controller, JobSpec
from adaptdl_ray.aws.spot import Notice, SpotListener

__all__ = ["Controller", "JobSpec", "Notice", "SpotListener"]
