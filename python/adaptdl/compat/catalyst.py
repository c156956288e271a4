"""``python -m adaptdl.compat.catalyst PROGRAM ARGUMENTS``: runs a program written for the package catalyst."""

import os
import runpy
import sys

from adaptdl.compat import install_catalyst


def main():
    """Runs the program; its exit status."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m adaptdl.compat.catalyst PROGRAM [ARGUMENT...]")
    install_catalyst()
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
