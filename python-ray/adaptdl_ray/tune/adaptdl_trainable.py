"""The module of the original package that had the trainable."""

from adaptdl_ray.tune._create import DistributedTrainableCreator
from adaptdl_ray.tune._create import DistributedTrainableCreator as AdaptDLTrainableCreator

__all__ = ["AdaptDLTrainableCreator", "DistributedTrainableCreator"]
