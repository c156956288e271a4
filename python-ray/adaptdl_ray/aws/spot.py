"""Will this machine be taken away? Asks the metadata service of the cloud, as EC2 has it: a session token first, the
questions without one where the service knows no tokens."""

from __future__ import annotations

import dataclasses
import threading
import time
import urllib.error
import urllib.request
from typing import Optional

__all__ = ["DEFAULT_URL", "Notice", "SpotListener", "SpotReader"]

#: Where machines of EC2 find their metadata service.
DEFAULT_URL = "http://169.254.169.254"
_TOKEN_TTL_S = 21600
_TIMEOUT_S = 2.0
_BODY_MAX = 65536
_QUESTIONS = (("termination", "/latest/meta-data/spot/instance-action"),
              ("rebalance", "/latest/meta-data/events/recommendations/rebalance"))
# Without an answer this often in a row there is no such service here, and looking seldom is enough.
_SILENT_AFTER = 3
_SILENT_S = 60.0


@dataclasses.dataclass(frozen=True)
class Notice:
    """The cloud's word that a machine goes away: "termination" or "rebalance", and its own text."""
    kind: str
    text: str


class SpotReader:
    """Asks once, when :meth:`read` is called.

    Args:
        url: Of the metadata service.
    """

    def __init__(self, url: str = DEFAULT_URL) -> None:
        self.url = url.rstrip("/")
        self._token: Optional[str] = None
        self._token_until = 0.0

    def read(self) -> Optional[Notice]:
        """A notice, when there is one. OSError: there is no metadata service, or it is out of order."""
        for kind, path in _QUESTIONS:
            status, body = self._get(path)
            if status == 401 and self._token:  # it has expired, or the service was restarted
                self._token, self._token_until = None, 0.0
                status, body = self._get(path)
            if status == 200:
                return Notice(kind, body.strip())
            if status != 404:  # "nothing to say"
                raise OSError(f"{self.url}{path}: the metadata service answered {status}")
        return None

    def _get(self, path: str) -> tuple[int, str]:
        if time.monotonic() >= self._token_until:
            self._renew_token()
        headers = {"X-aws-ec2-metadata-token": self._token} if self._token else {}
        return self._ask("GET", path, headers)

    def _renew_token(self) -> None:
        status, body = self._ask("PUT", "/latest/api/token",
                                 {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)})
        self._token = body.strip() if status == 200 and body.strip() else None
        self._token_until = time.monotonic() + _TOKEN_TTL_S / 2

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        request = urllib.request.Request(self.url + path, method=method, headers=headers,
                                         data=b"" if method == "PUT" else None)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                return answer.status, answer.read(_BODY_MAX).decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, ""


class SpotListener:
    """The actor that watches one node: wait() returns when there is a notice.

    Args:
        url: Of the metadata service; "{node}" in it becomes the node's id.
        node: The node's id.
        interval_s: Seconds between questions.
    """

    def __init__(self, url: str, node: str, interval_s: float = 5.0) -> None:
        self._reader = SpotReader(url.replace("{node}", node))
        self._interval_s = interval_s
        self._closed = threading.Event()

    def wait(self, timeout_s: Optional[float] = None) -> Optional[Notice]:
        """Asks until there is a notice; None: there was none in that time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        silent = 0
        while not self._closed.is_set() and (deadline is None or time.monotonic() < deadline):
            try:
                notice = self._reader.read()
                silent = 0
            except OSError:
                notice, silent = None, silent + 1
            if notice is not None:
                return notice
            pause = self._interval_s if silent < _SILENT_AFTER else max(self._interval_s, _SILENT_S)
            self._closed.wait(pause if deadline is None else min(pause, max(deadline - time.monotonic(), 0)))
        return None

    def close(self) -> None:
        self._closed.set()
