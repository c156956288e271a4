"""Programs written for other packages, unchanged.

:func:`install_catalyst` lets ``from catalyst import dl`` mean ``from adaptdl import dl``, where the package
``catalyst`` is not installed; ``python -m adaptdl.compat.catalyst PROGRAM ARGUMENTS`` does it for a program
whose lines are not to be touched."""

import importlib
import importlib.util
import sys
import types

__all__ = ["install_catalyst"]

# catalyst's module: ours
_MODULES = {
    "dl": "adaptdl.dl",
    "callbacks": "adaptdl.dl",
    "core": "adaptdl.dl",
    "engines": "adaptdl.dl",
    "loggers": "adaptdl.dl",
    "runners": "adaptdl.dl",
    "utils": "adaptdl.dl.utils",
    "metrics": "adaptdl.dl.metrics",
    "contrib": "adaptdl.contrib",
    "contrib.data": "adaptdl.contrib.transforms",
    "contrib.datasets": "adaptdl.contrib.datasets",
    "contrib.layers": "adaptdl.contrib.layers",
}


def install_catalyst():
    """Let imports of ``catalyst`` find this package. Twice is as good as once.

    Raises:
        RuntimeError: If the package ``catalyst`` is installed; it is not replaced.
    """
    present = sys.modules.get("catalyst")
    if present is not None and getattr(present, "__adaptdl__", False):
        return
    if present is not None or importlib.util.find_spec("catalyst") is not None:
        raise RuntimeError("the package catalyst is installed, and is not replaced: uninstall it, or change the import "
                           "lines to adaptdl's")
    package = types.ModuleType("catalyst", "adaptdl in catalyst's place.")
    package.__path__, package.__adaptdl__ = [], True
    package.__version__ = importlib.import_module("adaptdl").__version__
    sys.modules["catalyst"] = package
    for name, ours in _MODULES.items():
        module = importlib.import_module(ours)
        sys.modules[f"catalyst.{name}"] = module
        if "." not in name:
            setattr(package, name, module)
