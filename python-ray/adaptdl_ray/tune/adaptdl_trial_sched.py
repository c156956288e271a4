"""The module of the original package that had the scheduler."""

from adaptdl_ray.tune._scheduler import AdaptDLScheduler

__all__ = ["AdaptDLScheduler"]
