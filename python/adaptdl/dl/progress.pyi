from typing import Any, Optional

from adaptdl.dl.callback import Callback

__all__: list[str]

class TqdmCallback(Callback):
    def __init__(self, file: Optional[Any] = None, line_seconds: float = 10.0) -> None: ...
