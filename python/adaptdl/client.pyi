import os
from typing import Any, Dict, Iterator, List, Optional, Sequence, TypedDict, Union

__all__: List[str]

class Job(TypedDict, total=False):
    namespace: str
    name: str
    uid: str
    phase: str
    reason: Optional[str]
    message: Optional[str]
    created: float
    started: Optional[float]
    completed: Optional[float]
    replicas: int
    readyReplicas: int
    group: int
    restarts: int
    failures: int
    allocation: List[str]
    minReplicas: int
    maxReplicas: Optional[int]
    preemptible: bool
    priority: float
    suspend: str
    metrics: Dict[str, Dict[str, Any]]
    use: List[Dict[str, Any]]
    resources: Dict[str, int]
    command: List[str]
    train: Optional[Dict[str, Any]]
    deviceSeconds: float
    deleted: bool
    spec: Dict[str, Any]

class Event(TypedDict, total=False):
    seq: int
    time: float
    type: str
    job: Optional[str]
    message: str

class ClientError(RuntimeError):
    code: Optional[int]
    def __init__(self, message: str, code: Optional[int] = None) -> None: ...

class Client:
    server: str
    def __init__(self, server: Optional[str] = None, *, state: Optional[str] = None, token: Optional[str] = None,
                 ca: Optional[str] = None) -> None: ...
    def submit(self, job: Union[Dict[str, Any], str, os.PathLike[str]], *, name: Optional[str] = None,
               namespace: Optional[str] = None, arguments: Sequence[str] = ()) -> Job: ...
    def list(self, namespace: Optional[str] = None, phase: Optional[str] = None) -> List[Job]: ...
    def get(self, job: str) -> Job: ...
    def delete(self, job: str) -> Job: ...
    def logs(self, job: str, *, rank: int = 0, group: Optional[int] = None, tail: Optional[int] = None,
             follow: bool = False) -> Iterator[str]: ...
    def wait(self, job: str, phase: Optional[str] = None, *, timeout: Optional[float] = None) -> Job: ...
    def events(self, job: Optional[str] = None, *, since: Optional[int] = None, follow: bool = False) -> Iterator[Event]: ...

def submit(job: Union[Dict[str, Any], str, os.PathLike[str]], *, name: Optional[str] = None,
           namespace: Optional[str] = None, arguments: Sequence[str] = ()) -> Job: ...
def list(namespace: Optional[str] = None, phase: Optional[str] = None) -> List[Job]: ...
def get(job: str) -> Job: ...
def delete(job: str) -> Job: ...
def logs(job: str, *, rank: int = 0, group: Optional[int] = None, tail: Optional[int] = None,
         follow: bool = False) -> Iterator[str]: ...
def wait(job: str, phase: Optional[str] = None, *, timeout: Optional[float] = None) -> Job: ...
def events(job: Optional[str] = None, *, since: Optional[int] = None, follow: bool = False) -> Iterator[Event]: ...
