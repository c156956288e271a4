"""What a job's replicas ask and tell while they run: GET /discover says where rank 0 is, PUT /hints takes how
fast the job trains. The same two questions that AdaptDL's own scheduler answers, so that the training library
needs to know nothing of Ray."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from typing import Any, Optional

from adaptdl_ray import _snapshot

__all__ = ["Supervisor", "free_port"]

_BODY_MAX = 8 << 20
_DISCOVER_WAIT_S = 30


def free_port(offset: int = 0, tries: int = 1000) -> int:
    """A TCP port that nobody listens at; with an offset, the first from there on."""
    for port in range(offset, offset + tries) if offset else (0,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError(f"no free port from {offset} to {offset + tries - 1}")


class Supervisor:
    """An HTTP server in a thread of its own, for one job.

    Args:
        address: This machine's address, as other machines of the cluster reach it.
        job: The job's name, "namespace/name".
    """

    def __init__(self, address: str, job: str) -> None:
        self.job = job
        self._lock = threading.Condition()
        self._group = -1
        self._addresses: list[str] = []
        self._hints: Optional[dict[str, Any]] = None
        self._server = http.server.ThreadingHTTPServer((address, 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://{address}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="adaptdl-supervisor", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def set_group(self, group: int, addresses: list[str]) -> None:
        """From now on the job's replicas are these, in rank order."""
        with self._lock:
            self._group, self._addresses = group, list(addresses)
            self._lock.notify_all()

    def hints(self) -> Optional[dict[str, Any]]:
        """The last report; None: there was none."""
        with self._lock:
            return self._hints

    def put_hints(self, body: bytes) -> None:
        """Keeps a report. ValueError: it is not one."""
        try:
            hints = json.loads(body)
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"not JSON: {error}") from None
        _snapshot.check_hints(hints)
        with self._lock:
            self._hints = hints

    def discover(self, group: int) -> Optional[list[str]]:
        """The addresses of a group, when it is there; None: not yet."""
        with self._lock:
            self._lock.wait_for(lambda: self._group >= group, _DISCOVER_WAIT_S)
            return list(self._addresses) if self._group == group else None


def _handler(supervisor: Supervisor) -> type:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = self.path.split("?")[0].strip("/").split("/")
            if parts[0] != "discover" or "/".join(parts[1:-1]) != supervisor.job or not parts[-1].isdigit():
                self._answer(404, {"error": f"no {self.path}"})
                return
            addresses = supervisor.discover(int(parts[-1]))
            self._answer(408 if addresses is None else 200, addresses or [])

        def do_PUT(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > _BODY_MAX:
                self.close_connection = True
                self._answer(413, {"error": f"Content-Length must be given, at most {_BODY_MAX}"})
                return
            body = self.rfile.read(int(length))
            if self.path.strip("/") != f"hints/{supervisor.job}":
                self._answer(404, {"error": f"no {self.path}"})
                return
            try:
                supervisor.put_hints(body)
            except ValueError as error:
                self._answer(400, {"error": str(error)})
                return
            self._answer(200, {})

        def _answer(self, code: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *unused: Any) -> None:
            pass

    return Handler
