"""Which Ray this package runs on. One clear error instead of an ImportError from somewhere inside."""

from __future__ import annotations

import re

__all__ = ["LEAST_RAY", "require_ray", "version_tuple"]

#: The oldest Ray whose Tune has what the scheduler needs, and that is tested.
LEAST_RAY = (2, 40)


def version_tuple(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.40.0rc1" is (2, 40, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def require_ray() -> None:
    """Raises ImportError when there is no Ray, or one that is too old."""
    wanted = ".".join(map(str, LEAST_RAY))
    try:
        import ray
    except ImportError as error:
        raise ImportError(f"adaptdl_ray needs Ray {wanted} or later, and there is none ({error}); "
                          f"install it with: pip install 'ray[client,tune]>={wanted}'") from None
    version = getattr(ray, "__version__", None)
    if version is None:  # a folder called "ray" on the path is a package without a file
        raise ImportError(f"adaptdl_ray needs Ray {wanted} or later; what is called ray here is not Ray: "
                          f"{list(getattr(ray, '__path__', []))}")
    if version_tuple(version) < LEAST_RAY:
        raise ImportError(f"adaptdl_ray needs Ray {wanted} or later, this is {version}; "
                          f"install a newer one with: pip install -U 'ray[client,tune]>={wanted}'")
