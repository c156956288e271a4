"""What a job's replicas ask and tell while they run: GET /discover says where rank 0 is, PUT /hints takes how
fast the job trains, GET /world says who trains with whom next, and PUT /world takes what replicas have to say to that.
The same questions that AdaptDL's own scheduler answers (docs/api.md), so that the training library needs to know
nothing of Ray."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
import urllib.parse
from typing import Any, Optional

from adaptdl_ray import _snapshot

__all__ = ["Supervisor", "free_port"]

_BODY_MAX = 8 << 20
_DISCOVER_WAIT_S = 30
_LINES_MAX, _LINE_MAX = 16, 512


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
        self._device_type = ""
        self._worlds: Any = None
        self._models: dict[str, dict[str, Any]] = {}
        self._server = http.server.ThreadingHTTPServer((address, 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://{address}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="adaptdl-supervisor", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def set_group(self, group: int, addresses: list[str], device_type: str = "", worlds: Any = None) -> None:
        """From now on the job's replicas are these, in rank order, on devices of that type. worlds: who of them trains
        with whom, a ``_core.Worlds``."""
        with self._lock:
            self._group, self._addresses, self._device_type = group, list(addresses), device_type
            self._worlds = worlds
            self._lock.notify_all()

    def changed(self) -> None:
        """There may be another world on offer."""
        with self._lock:
            self._lock.notify_all()

    def hints(self) -> Optional[dict[str, Any]]:
        """The last report; None: there was none."""
        with self._lock:
            return self._hints

    def models(self) -> dict[str, dict[str, Any]]:
        """The last report from each device type."""
        with self._lock:
            return dict(self._models)

    def put_hints(self, body: bytes) -> None:
        """Keeps a report. ValueError: it is not one."""
        try:
            hints = json.loads(body)
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"not JSON: {error}") from None
        _snapshot.check_hints(hints)
        with self._lock:
            self._hints = self._models[self._device_type] = hints

    def discover(self, group: int) -> Optional[list[str]]:
        """The addresses of a group, when it is there; None: not yet."""
        with self._lock:
            self._lock.wait_for(lambda: self._group >= group, _DISCOVER_WAIT_S)
            return list(self._addresses) if self._group == group else None

    def world(self, group: int, after: int, dropped: int, saves: int, name: str) -> tuple[int, Any]:
        """The world on offer, and how many checkpoints were asked for, as a status and an answer; waits for what is
        new."""
        def found() -> bool:
            return (self._group != group or self._worlds is None
                    or self._worlds.offer(after, dropped, name, saves) is not None)

        with self._lock:
            if not self._lock.wait_for(found, _DISCOVER_WAIT_S):
                return 408, {"error": f"no world after {after}"}
            if self._group != group or self._worlds is None:
                return 409, {"error": f"group {group} is not the present one"}
            return 200, json.loads(self._worlds.offer(after, dropped, name, saves))

    def hear(self, body: bytes) -> None:
        """What a replica says about worlds. ValueError: nothing that could be understood."""
        try:
            said = json.loads(body)
            group, member, lines = int(said["restarts"]), int(said["member"]), list(said["says"])
        except (UnicodeDecodeError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"not what a replica says: {error!r}") from None
        if len(lines) > _LINES_MAX or not all(isinstance(line, str) and 0 < len(line) <= _LINE_MAX for line in lines):
            raise ValueError(f"says must be a list of at most {_LINES_MAX} texts of at most {_LINE_MAX} characters")
        with self._lock:
            for line in lines if group == self._group and self._worlds is not None else ():
                self._worlds.hear(member, line, time.monotonic())


def _handler(supervisor: Supervisor) -> type:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            parts = path.strip("/").split("/")
            if path.strip("/") == f"world/{supervisor.job}":
                self._world(dict(urllib.parse.parse_qsl(query)))
                return
            if parts[0] != "discover" or "/".join(parts[1:-1]) != supervisor.job or not parts[-1].isdigit():
                self._answer(404, {"error": f"no {self.path}"})
                return
            addresses = supervisor.discover(int(parts[-1]))
            self._answer(408 if addresses is None else 200, addresses or [])

        def _world(self, query: dict[str, str]) -> None:
            numbers = [query.get(name, "0") for name in ("restarts", "after", "dropped")] + [query.get("saves", "999999999")]
            if not all(number.isdigit() and len(number) < 10 for number in numbers):
                self._answer(400, {"error": "restarts, after, dropped and saves must be whole numbers"})
                return
            self._answer(*supervisor.world(*map(int, numbers), query.get("scheduler", "")))

        def do_PUT(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > _BODY_MAX:
                self.close_connection = True
                self._answer(413, {"error": f"Content-Length must be given, at most {_BODY_MAX}"})
                return
            body = self.rfile.read(int(length))
            takes = {f"hints/{supervisor.job}": supervisor.put_hints, f"world/{supervisor.job}": supervisor.hear,
                     f"reports/{supervisor.job}": lambda unread: None}  # its metrics: nobody shows them here
            if self.path.strip("/") not in takes:
                self._answer(404, {"error": f"no {self.path}"})
                return
            try:
                takes[self.path.strip("/")](body)
            except ValueError as error:
                self._answer(400, {"error": str(error)})
                return
            self._answer(200, {})

        def _answer(self, code: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            try:
                self.end_headers()
                self.wfile.write(body)
            except ConnectionError:  # who asked has left meanwhile
                self.close_connection = True

        def log_message(self, *unused: Any) -> None:
            pass

    return Handler
