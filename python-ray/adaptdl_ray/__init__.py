"""AdaptDL on Ray.

- :mod:`adaptdl_ray.tune`: a Tune scheduler whose trials grow and shrink while they train, and the trainable
  that goes with it.
- :mod:`adaptdl_ray.aws`: one elastic job on a Ray cluster of rented machines; the command
  ``adaptdl_on_ray_aws`` starts it.

Who gets how many replicas is decided by the policies of :mod:`adaptdl.policy`, the same that AdaptDL's own
scheduler uses.
"""

from adaptdl_ray._requirements import require_ray
from adaptdl_ray._version import VERSION as __version__

require_ray()

__all__ = ["__version__"]
