from typing import Any, Callable, Optional, TypeVar

from adaptdl.reducer import Future as Future

__all__: list[str]

_Class = TypeVar("_Class", bound=type)

def initialize(
    master_addr: Optional[str] = None,
    master_port: Optional[int] = None,
    replica_rank: Optional[int] = None,
    num_replicas: Optional[int] = None,
) -> None: ...
def teardown() -> None: ...
def allreduce(value: Any, reduce_fn: Callable[[Any, Any], Any] = ...) -> Any: ...
def allreduce_async(value: Any, reduce_fn: Callable[[Any, Any], Any] = ...) -> Future: ...
def broadcast(value: Any) -> Any: ...
def register(
    cls: _Class,
    to_value: Optional[Callable[[Any], Any]] = None,
    from_value: Optional[Callable[[Any], Any]] = None,
) -> _Class: ...
