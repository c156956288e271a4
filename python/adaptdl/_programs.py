"""The programs that came with the package: the commands ``adaptdl`` and ``adaptdl-sched`` become them."""

import os
import sys

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bundle", "bin")


def path(name):
    """Where a program is; None when the package was built without them (from source, say)."""
    program = os.path.join(_FOLDER, name)
    return program if os.access(program, os.X_OK) else None


def _become(name):
    program = path(name)
    if program is None:
        sys.exit(f"{name}: this build of the package has no programs in it; a wheel of `make wheel` has, and `make install` "
                 "installs them")
    os.execv(program, [name] + sys.argv[1:])


def adaptdl():
    _become("adaptdl")


def adaptdl_sched():
    _become("adaptdl-sched")
