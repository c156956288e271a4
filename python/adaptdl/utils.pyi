from typing import Any, Callable, TypeVar

__all__: list[str]

_F = TypeVar("_F", bound=Callable[..., Any])

def print_exc(function: _F) -> _F: ...
