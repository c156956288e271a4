"""A cluster from Python: what ``adaptdl submit``, ``ls``, ``logs``, ``wait`` and ``events`` do, for scripts and
notebooks::

    from adaptdl import client

    job = client.submit("examples/hello_world")
    for line in client.logs(job["name"], follow=True):
        print(line)
    print(client.wait(job["name"])["phase"])

The functions of the module talk to the cluster that the command line would: ``$ADAPTDL_SERVER``, or the socket in the
state directory (``$ADAPTDL_STATE``, else ``~/.local/state/adaptdl``). A :class:`Client` is for another one. What they
return is what the scheduler's HTTP API says (docs/api.md), as dictionaries.
"""

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from typing import Any, Dict, List, Optional, TypedDict
from urllib.parse import quote, urlencode, urlsplit

from adaptdl import _programs

__all__ = ["Client", "ClientError", "Event", "Job", "delete", "events", "get", "list", "logs", "submit", "wait"]

_TIMEOUT_S = 60
_OVER = ("Succeeded", "Failed")


class Job(TypedDict, total=False):
    """A job, as the API describes it."""

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
    """Something that happened in the cluster; some types have more fields."""

    seq: int
    time: float
    type: str
    job: Optional[str]
    message: str


class ClientError(RuntimeError):
    """The scheduler refused, or does not answer.

    Attributes:
        code (int or None): The answer's HTTP status; None when there was none.
    """

    def __init__(self, message, code=None):
        super().__init__(message)
        self.code = code


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """A cluster.

    Args:
        server (str, optional): ``"unix:PATH"``, ``"http://HOST:PORT"`` or ``"https://HOST:PORT"``; as the command line
            finds it by default.
        state (str, optional): The state directory of a cluster on this machine, in the place of ``server``.
        token (str, optional): For TCP; ``$ADAPTDL_TOKEN`` by default.
        ca (str, optional): Certificates to trust with https; ``$ADAPTDL_CA`` or the system's by default.

    Raises:
        ValueError: If the server's address is malformed.
    """

    def __init__(self, server=None, *, state=None, token=None, ca=None):
        if server is None and state is None:
            server = os.environ.get("ADAPTDL_SERVER") or None
        if server is None:
            state = state or os.environ.get("ADAPTDL_STATE") or os.path.join(
                os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "adaptdl")
            server = "unix:" + os.path.join(os.path.abspath(state), "adaptdl.sock")
        url = urlsplit(server)
        if not (url.scheme == "unix" and url.path) and not (url.scheme in ("http", "https") and url.hostname):
            raise ValueError(f"server must be unix:PATH, http://HOST:PORT or https://HOST:PORT, not {server!r}")
        self.server = server
        self._url = url
        self._token = token or os.environ.get("ADAPTDL_TOKEN")
        self._ca = ca or os.environ.get("ADAPTDL_CA") or None

    def submit(self, job, *, name=None, namespace=None, arguments=()):
        """Create a job.

        Args:
            job (dict or path): The content of a job file, or what ``adaptdl submit`` takes: a folder with
                ``adaptdljob.yaml`` and the program, or a job file.
            name (str, optional): The job's name, in the place of the file's.
            namespace (str, optional): Likewise.
            arguments (sequence of str): In the place of the container's ``args``; with a path only.

        Returns:
            Job: The job.

        Raises:
            ClientError: If it is refused; the message says which field and why.
        """
        if isinstance(job, dict):
            if arguments:
                raise ValueError("arguments go with a path; a dict has its own args")
            metadata = dict(job.get("metadata") or {})
            if name:
                metadata.pop("generateName", None)
            metadata.update({key: value for key, value in (("name", name), ("namespace", namespace)) if value})
            return self._ask("POST", "/api/v1/jobs", json.dumps({**job, "metadata": metadata}))
        command = [_programs.path("adaptdl") or shutil.which("adaptdl") or "adaptdl", "submit", "-o", "json",
                   "--server", self.server]
        for option, value in (("--name", name), ("--namespace", namespace), ("--ca", self._ca)):
            command += [option, value] if value else []
        env = dict(os.environ, ADAPTDL_TOKEN=self._token) if self._token else None
        try:
            done = subprocess.run([*command, os.fspath(job), "--", *arguments] if arguments else [*command, os.fspath(job)],
                                  env=env, capture_output=True, text=True)
        except FileNotFoundError:
            raise ClientError("submitting a folder or file needs the program adaptdl, which is not on the PATH") from None
        if done.returncode != 0:
            raise ClientError(done.stderr.strip())
        return json.loads(done.stdout)

    def list(self, namespace=None, phase=None):
        """The jobs, oldest first.

        Args:
            namespace (str, optional): Only those of this one.
            phase (str, optional): Only those in this phase.

        Returns:
            list of Job: Without their ``spec``.
        """
        return self._ask("GET", "/api/v1/jobs" + _query(namespace=namespace, phase=phase))["items"]

    def get(self, job):
        """One job.

        Args:
            job (str): "name" or "namespace/name".

        Returns:
            Job: The job, with its ``spec``.

        Raises:
            ClientError: With code 404 if there is none.
        """
        return self._ask("GET", _path(job))

    def delete(self, job):
        """Stop a job and remove it; it is gone (404) when its replicas are.

        Args:
            job (str): "name" or "namespace/name".

        Returns:
            Job: As it was.
        """
        return self._ask("DELETE", _path(job))

    def logs(self, job, *, rank=0, group=None, tail=None, follow=False):
        """The lines that a replica printed.

        Args:
            job (str): "name" or "namespace/name".
            rank (int): Of which replica.
            group (int, optional): Of which start of the job; the newest by default.
            tail (int, optional): Only so many of the last lines.
            follow (bool): All starts from the first on, going on until the job ends.

        Yields:
            str: A line, without its end.
        """
        path = _path(job) + "/logs" + _query(rank=rank, group=group, tail=tail, follow=1 if follow else None)
        with self._open("GET", path, timeout=None if follow else _TIMEOUT_S) as answer:
            for line in answer:
                yield line.decode(errors="replace").rstrip("\n")

    def wait(self, job, phase=None, *, timeout=None):
        """Wait for a job.

        Args:
            job (str): "name" or "namespace/name".
            phase (str, optional): Until it is in this phase, or has ended; by default until it has ended.
            timeout (float, optional): Seconds to wait at most.

        Returns:
            Job: The job then: look at its ``phase``.

        Raises:
            TimeoutError: If the time is over.
            ClientError: With code 404 if the job is or was deleted.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            since = self._ask("GET", "/api/v1/cluster")["lastEvent"]
            found = self.get(job)
            if found["phase"] in _OVER or found["phase"] == phase:
                return found
            full = f"{found['namespace']}/{found['name']}"
            try:
                next(self._stream(since, full, until, full), None)
            except TimeoutError:
                raise TimeoutError(f"job {full} is {found['phase']} after {timeout} s") from None

    def events(self, job=None, *, since=None, follow=False):
        """What happened, oldest first.

        Args:
            job (str, optional): "name" or "namespace/name": only what concerns this job.
            since (int, optional): Only what came after the event of this ``seq``.
            follow (bool): Go on with what happens from now on, for ever.

        Yields:
            Event: An event.
        """
        full = "/".join(_split(job)) if job else None
        if follow:
            yield from self._stream(since, full, None, "the cluster")
        else:
            yield from self._ask("GET", "/api/v1/events" + _query(since=since, job=full))["items"]

    def _stream(self, since, job, until, what):
        """Events as the server sends them; goes on after a broken connection."""
        while True:
            path = "/api/v1/events" + _query(since=since, job=job)
            with self._open("GET", path, accept="text/event-stream", timeout=_TIMEOUT_S) as answer:
                while True:
                    left = _TIMEOUT_S if until is None else min(_TIMEOUT_S, until - time.monotonic())
                    if left <= 0:
                        raise TimeoutError(what)
                    answer.limit(left)
                    try:
                        line = answer.readline()
                    except OSError:  # also a time-out, of the wait or of a server that has gone silent
                        line = b""
                    if not line:
                        break
                    if line.startswith(b"data: "):
                        event = json.loads(line[6:])
                        since = event["seq"]
                        yield event
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(what)

    def _connect(self, timeout):
        if self._url.scheme == "unix":
            return _UnixConnection(self._url.path, timeout)
        if self._url.scheme == "http":
            return http.client.HTTPConnection(self._url.hostname, self._url.port, timeout=timeout)
        return http.client.HTTPSConnection(self._url.hostname, self._url.port, timeout=timeout,
                                           context=ssl.create_default_context(cafile=self._ca))

    def _open(self, method, path, body=None, accept=None, timeout=_TIMEOUT_S):
        connection = self._connect(timeout)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if accept:
            headers["Accept"] = accept
        if self._token and self._url.scheme != "unix":
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, body, headers)
            sock = connection.sock
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ClientError(f"{self.server} does not answer ({error}); start a cluster with: adaptdl up") from error
        if answer.status < 400:
            return _Answer(connection, sock, answer)
        with _Answer(connection, sock, answer):
            raise ClientError(_message(answer.read(), answer.status), answer.status)

    def _ask(self, method, path, body=None):
        with self._open(method, path, body) as answer:
            return json.loads(answer.read())


class _Answer:
    """An answer and what must be closed with it."""

    def __init__(self, connection, sock, answer):
        self._connection, self._socket, self._answer = connection, sock, answer
        self.read, self.readline = answer.read, answer.readline

    def limit(self, seconds):
        self._socket.settimeout(seconds)

    def __iter__(self):
        return iter(self._answer)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._answer.close()
        self._connection.close()


def _message(body, status):
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the scheduler answered with status {status}"


def _split(job):
    namespace, _, name = job.rpartition("/")
    return namespace or "default", name


def _path(job):
    return "/api/v1/jobs/" + "/".join(quote(part, safe="") for part in _split(job))


def _query(**values):
    given = {key: value for key, value in values.items() if value is not None}
    return "?" + urlencode(given) if given else ""


def submit(job, *, name=None, namespace=None, arguments=()):
    """Create a job on the default cluster: :meth:`Client.submit`."""
    return Client().submit(job, name=name, namespace=namespace, arguments=arguments)


def list(namespace=None, phase=None):
    """The jobs of the default cluster: :meth:`Client.list`."""
    return Client().list(namespace, phase)


def get(job):
    """A job of the default cluster: :meth:`Client.get`."""
    return Client().get(job)


def delete(job):
    """Remove a job of the default cluster: :meth:`Client.delete`."""
    return Client().delete(job)


def logs(job, *, rank=0, group=None, tail=None, follow=False):
    """What a job of the default cluster printed: :meth:`Client.logs`."""
    return Client().logs(job, rank=rank, group=group, tail=tail, follow=follow)


def wait(job, phase=None, *, timeout=None):
    """Wait for a job of the default cluster: :meth:`Client.wait`."""
    return Client().wait(job, phase, timeout=timeout)


def events(job=None, *, since=None, follow=False):
    """What happened in the default cluster: :meth:`Client.events`."""
    return Client().events(job, since=since, follow=follow)
