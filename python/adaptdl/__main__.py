"""``python -m adaptdl``: what is installed, and the environment that a program would see."""

import importlib.util
import os
import platform
import sys

from adaptdl import __version__, _core

_SECRET = "ADAPTDL_JOB_SECRET"


def _optional(name):
    if importlib.util.find_spec(name) is None:
        return "not installed"
    module = __import__(name)
    return getattr(module, "__version__", "installed")


def main():
    """Print version, build and environment. 0, or 1 when a variable is malformed."""
    print(f"adaptdl   {__version__}")
    print(f"build     {os.path.basename(_core.__file__)}, gcc {_core.compiler}")
    print(f"python    {platform.python_version()} ({sys.executable})")
    print(f"platform  {platform.platform()}")
    print(f"torch     {_optional('torch')}")
    print(f"numpy     {_optional('numpy')}")
    print()
    variables = sorted(name for name in os.environ if name.startswith("ADAPTDL_"))
    for name in variables:
        print(f"{name}={'(set)' if name == _SECRET else os.environ[name]}")
    if not variables:
        print("no ADAPTDL_* variable is set: a single replica, no checkpoints")
    try:
        env = _core.env()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"rank {env['replica_rank']} of {env['num_replicas']} on {env['num_nodes']} "
          f"node{'s' if env['num_nodes'] > 1 else ''}, {env['num_restarts']} restarts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
