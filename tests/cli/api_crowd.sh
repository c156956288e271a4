#!/usr/bin/env bash
# A daemon among bad clients: 200 that send a byte a second, 50 that ask for events and never read, 100 log
# followers that vanish, 1000 connections at once, wrong tokens. The others are served, and afterwards the
# daemon has as many open files as before.
set -u
bin=${ADAPTDL_BIN:-build/release/bin}
tmp=$(mktemp -d) daemon=
clean_up() {
    [ -n "$daemon" ] && kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null
    rm -rf "$tmp"
}
trap clean_up EXIT
printf 'limits: {idleSeconds: 3, maxConnections: 1200, requestsPerSecond: 0}\n' >"$tmp/config.yaml"
: >"$tmp/log"
(ulimit -n 4096 2>/dev/null || ulimit -n "$(ulimit -Hn)"
exec "$bin/adaptdl-sched" --state "$tmp/state" --config "$tmp/config.yaml" --nodes 1 --slots 1 2>"$tmp/log") &
daemon=$!
for _ in $(seq 1200); do grep -q ' serves ' "$tmp/log" && break; sleep 0.05; done
timeout -k 5 120 /usr/bin/python3 - "$tmp/state/adaptdl.sock" "$daemon" <<'END'
import json, os, resource, socket, sys, time

path, daemon = sys.argv[1], int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))


def connect():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect(path)
    return s


def ask(target, s=None, method="GET", body=b"", headers=""):
    own = s or connect()
    own.sendall(f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)
    data = b""
    while b"\r\n\r\n" not in data:
        piece = own.recv(65536)
        if not piece:
            return 0
        data += piece
    head, rest = data.split(b"\r\n\r\n", 1)
    length = [int(l.split(b":")[1]) for l in head.split(b"\r\n") if l.lower().startswith(b"content-length:")]
    while length and len(rest) < length[0]:
        rest += own.recv(65536)
    if not s:
        own.close()
    return int(head.split()[1])


def open_files():
    return len(os.listdir(f"/proc/{daemon}/fd"))


job = {"apiVersion": "adaptdl.petuum.com/v1", "kind": "AdaptDLJob", "metadata": {"name": "quiet"}, "spec": {"template": {
    "spec": {"containers": [{"name": "main", "command": ["sleep", "600"], "resources": {"requests": {"x.com/none": 1}}}]}}}}
assert ask("/api/v1/jobs", method="POST", body=json.dumps(job).encode(), headers="Content-Type: application/json\r\n") == 201
time.sleep(1)
before = open_files()

slow = [connect() for _ in range(200)]
for i, s in enumerate(slow):
    s.send((b"GET /healthz HTTP/1.1\r\nX: ", b"PUT /hints/default/quiet HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n")[i % 2])
deaf = [connect() for _ in range(50)]
for s in deaf:
    s.send(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
gone = [connect() for _ in range(100)]
for s in gone:
    s.send(b"GET /api/v1/jobs/default/quiet/logs?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n")
served = wrong = 0
for second in range(8):
    for s in slow:
        try:
            s.send(b"x", socket.MSG_NOSIGNAL)
        except OSError:
            pass
    for s in gone if second == 2 else []:
        s.close()
    for target in ("/healthz", "/api/v1/jobs", "/api/v1/cluster", "/metrics") * 5:
        code = ask(target)
        served += code == 200
        wrong += code != 200
    time.sleep(1)
print(f"not ok - served_among_slow_clients: {wrong} requests were not" if wrong else "ok - served_among_slow_clients")
print(f"info - 200 slow, 50 deaf, 100 vanished clients; {served} requests served meanwhile")
for s in slow + deaf:
    s.close()

if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2000:
    print("skip - a_thousand_connections: fewer than 2000 descriptors are allowed")
else:
    many, good = [], 0
    for _ in range(1000):  # each asks at once: on a busy machine the first are closed as idle before the last have come
        many.append(connect())
        good += ask("/healthz", many[-1]) == 200
    print("ok - a_thousand_connections" if good == 1000 else f"not ok - a_thousand_connections: {good} were served")
    for s in many:
        s.close()
for _ in range(300):
    after = open_files()
    if after <= before:
        break
    time.sleep(0.1)
print("ok - no_descriptor_is_leaked" if after <= before else f"not ok - no_descriptor_is_leaked: {before} before, {after} after")
sys.exit(1 if wrong or after > before else 0)
END
status=$?
kill "$daemon" && wait "$daemon"
ended=$?
daemon=
if [ $ended -eq 0 ] && ! grep -q Sanitizer "$tmp/log"; then
    echo "ok - the_daemon_ends_well"
else
    echo "not ok - the_daemon_ends_well: exit status $ended"
    tail -n 40 "$tmp/log" | sed 's/^/# /'
    status=1
fi
exit $status
