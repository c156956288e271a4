from typing import Any, Mapping, Optional

__version__: str
__all__: list[str]

def report(metrics: Optional[Mapping[str, Any]] = None, *, step: Optional[int] = None, **more: Any) -> None: ...
