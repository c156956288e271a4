from collections.abc import Mapping
from typing import Any

__all__: list[str]

PERF_PARAMS: Mapping[str, float]
SCHED_HINTS: Mapping[str, Any]

def post_sched_hints(sched_hints: Mapping[str, Any], job_key: str) -> None: ...
