"""AdaptDL: training jobs that change their size and their batch size while they run.

The package adapts a library written in C to Python:

- ``adaptdl.torch``: data loaders, data parallelism and loops for PyTorch programs;
- ``adaptdl.checkpoint``, ``adaptdl.collective``, ``adaptdl.env``: what they are made of, for programs
  that need more;
- ``adaptdl.report``: what a job measures, for people and their dashboards;
- ``adaptdl.goodput``: the model that chooses batch sizes, for planning and experiments;
- ``adaptdl.client``: a cluster's jobs, from scripts and notebooks.

Importing it changes nothing in the process; signals and connections begin with
``adaptdl.torch.init_process_group`` (or ``adaptdl.collective.initialize``).
"""

from adaptdl import _core
from adaptdl._report import report

__version__ = _core.version
__all__ = ["__version__", "report"]
