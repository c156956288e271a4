#!/usr/bin/python3
"""adaptdl.sched_hints against a server; and the runtime's own reports and discovery through the package."""

import http.server
import json
import logging
import threading

import harness
import pytest

from adaptdl import sched_hints, utils


class Supervisor:
    """Keeps what was PUT; answers discovery with `addresses` after `busy` times 408."""

    def __init__(self, code=200, addresses=None, busy=0):
        outer = self
        self.requests, self.busy = [], busy

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, self.headers, json.loads(body)))
                self.answer(code, b"noted")

            def do_GET(self):
                outer.requests.append((self.path, self.headers, None))
                outer.busy -= 1
                if outer.busy >= 0:
                    self.answer(408, b"")
                else:
                    self.answer(200, json.dumps(addresses).encode())

            def answer(self, status, body):
                self.send_response(status)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for at in range(0, len(body), 3):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(body[at:at + 3]), body[at:at + 3]))
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


HINTS = dict(sched_hints.SCHED_HINTS, initBatchSize=64, perfParams=dict(sched_hints.PERF_PARAMS, gamma=1.5),
             gradParams={"norm": 1.0, "var": 2.0}, localBszBounds=[32, 128], loneReplicaGrows=True)


def test_hints_are_put_as_json(monkeypatch):
    with Supervisor() as supervisor:
        monkeypatch.setenv("ADAPTDL_JOB_ID", "team/job")
        monkeypatch.setenv("ADAPTDL_SUPERVISOR_URL", supervisor.url.replace("//", "//me:secret@") + "/")
        assert sched_hints.post_sched_hints(HINTS, "team/job") is None
    (path, headers, body), = supervisor.requests
    assert path == "/hints/team/job" and body == HINTS
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Basic bWU6c2VjcmV0"


def test_the_fields_are_those_of_the_protocol():
    assert set(sched_hints.SCHED_HINTS) == {
        "initBatchSize", "localBszBounds", "globalBatchSize", "maxBatchSize", "maxProfiledReplicas",
        "gradientAccumulation", "gradParams", "perfParams"}
    assert list(sched_hints.PERF_PARAMS) == ["alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma"]
    with pytest.raises(TypeError):
        sched_hints.SCHED_HINTS["initBatchSize"] = 1


def test_without_a_supervisor_nothing_happens(monkeypatch):
    monkeypatch.delenv("ADAPTDL_SUPERVISOR_URL", raising=False)
    assert sched_hints.post_sched_hints(HINTS, "team/job") is None


def test_a_supervisor_that_refuses_is_a_warning(monkeypatch, caplog):
    with Supervisor(code=500) as supervisor:
        monkeypatch.setenv("ADAPTDL_SUPERVISOR_URL", supervisor.url.replace("//", "//job:T0KEN@"))
        sched_hints.post_sched_hints({}, "team/job")
    assert "500 noted" in caplog.text and "//***@" in caplog.text and "T0KEN" not in caplog.text
    caplog.clear()
    sched_hints.post_sched_hints({}, "team/job")  # nobody there any more
    assert "hints not sent" in caplog.text and caplog.records[0].levelno == logging.WARNING
    assert "T0KEN" not in caplog.text
    caplog.clear()
    with Supervisor() as supervisor:  # one that does not speak TLS
        monkeypatch.setenv("ADAPTDL_SUPERVISOR_URL", supervisor.url.replace("http:", "https:"))
        sched_hints.post_sched_hints({}, "team/job")
    assert "hints not sent" in caplog.text and "TLS" in caplog.text


@pytest.mark.parametrize("hints, key", [
    ({"unknown": 1}, "a/b"), ({"perfParams": {"delta": 1}}, "a/b"), ({"gradParams": {"sqr": 1}}, "a/b"),
    ({"initBatchSize": float("nan")}, "a/b"), ({}, None), ({}, "a/b/c"), ({"perfParams": object()}, "a/b")])
def test_wrong_hints_are_a_warning(hints, key, monkeypatch, caplog):
    with Supervisor() as supervisor:
        monkeypatch.setenv("ADAPTDL_SUPERVISOR_URL", supervisor.url)
        sched_hints.post_sched_hints(hints, key)
        assert "hints not sent" in caplog.text and not supervisor.requests


def test_rank_0_is_discovered_through_the_supervisor():
    with Supervisor(addresses=["127.0.0.1", "127.0.0.2"], busy=1) as supervisor:
        out = harness.replicas(2, """
import os
os.environ["ADAPTDL_MASTER_ADDR"] = "192.0.2.1"     # wrong: the supervisor knows better
from adaptdl import collective, env
collective.initialize()
print(collective.allreduce(1), env.master_addr())
collective.teardown()
""", ADAPTDL_SUPERVISOR_URL=supervisor.url, ADAPTDL_JOB_ID="team/job", ADAPTDL_NUM_RESTARTS=4)
    assert out == ["2 127.0.0.1\n"] * 2
    assert {path for path, _, _ in supervisor.requests} == {"/discover/team/job/4"}


def test_print_exc_prints_and_raises(capsys):
    @utils.print_exc
    def fail(x, *, y=2):
        """Fails."""
        raise KeyError(x + y)
    with pytest.raises(KeyError):
        fail(1)
    assert "KeyError: 3" in capsys.readouterr().err
    assert fail.__name__ == "fail" and fail.__doc__ == "Fails."
    assert utils.print_exc(max)(1, 2) == 2


if __name__ == "__main__":
    harness.main(__file__)
