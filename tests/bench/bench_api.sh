#!/usr/bin/env bash
# The HTTP API under load, with wrk over TCP: bench_api.sh BUILD [SECONDS]. A daemon with 100 jobs (no node
# fits them, so that nothing but the server works); then the same with 100 clients attached that send or
# read a byte a second. Client and server share the machine.
set -euo pipefail
bin=$1/bin seconds=${2:-5}
command -v wrk >/dev/null || { echo "HTTP API: skipped, wrk is not installed"; exit 0; }
tmp=$(mktemp -d) daemon= slow=
clean_up() {
    [ -n "$slow" ] && kill "$slow" 2>/dev/null
    [ -n "$daemon" ] && kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null
    rm -rf "$tmp"
}
trap clean_up EXIT
printf 'limits: {requestsPerSecond: 0, maxConnections: 1000}\n' >"$tmp/config.yaml"
: >"$tmp/log"
"$bin/adaptdl-sched" --state "$tmp/state" --config "$tmp/config.yaml" --nodes 1 --slots 1 \
    --listen 127.0.0.1:0 2>"$tmp/log" &
daemon=$!
for _ in $(seq 200); do grep -q ' serves ' "$tmp/log" && break; sleep 0.05; done
url=$(grep -oE 'http://[0-9.]+:[0-9]+' "$tmp/log" | head -n 1)
token=$(cat "$tmp/state/token")

/usr/bin/python3 - "$url" "$token" <<'END'
import json, sys, urllib.request
url, token = sys.argv[1:]
for i in range(100):
    job = {"apiVersion": "adaptdl.petuum.com/v1", "kind": "AdaptDLJob", "metadata": {"name": f"job-{i}"},
           "spec": {"template": {"spec": {"containers": [{"name": "main", "command": ["sleep", "1"],
                    "resources": {"requests": {"example.com/none": 1}}}]}}}}
    urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/jobs", json.dumps(job).encode(), {
        "Content-Type": "application/json", "Authorization": f"Bearer {token}"}))
END
cat >"$tmp/hints.lua" <<'END'
wrk.method = "PUT"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"initBatchSize": 32, "localBszBounds": [8, 64], "globalBatchSize": 64, "maxBatchSize": 512, ' ..
    '"maxProfiledReplicas": 1, "gradParams": {"norm": 0.5, "var": 1.5}, "perfParams": {"alpha_c": 0.1, ' ..
    '"beta_c": 0.01, "alpha_n": 0.1, "beta_n": 0.01, "alpha_r": 0.1, "beta_r": 0.01, "gamma": 1.5}}'
local n = 0
request = function()
    n = (n + 1) % 100
    return wrk.format(nil, "/hints/default/job-" .. n)
end
END

# "REQUESTS-PER-S P50 P99 ERRORS" of one run.
measure() {
    local path=$1
    shift
    wrk -t2 -c16 -d"$seconds" --latency -H "Authorization: Bearer $token" "$@" "$url$path" >"$tmp/wrk"
    awk '$1 == "50%" { p50 = $2 } $1 == "99%" { p99 = $2 } $1 == "Requests/sec:" { rate = $2 }
         /Non-2xx|Socket errors/ { bad = $0 } END { print rate, p50, p99, (bad == "" ? "-" : bad) }' "$tmp/wrk"
}

declare -A alone
row() { # name, phase, path, wrk flags
    local name=$1 phase=$2 rate p50 p99 bad note=
    shift 2
    read -r rate p50 p99 bad < <(measure "$@")
    [ "$phase" = alone ] && alone[$name]=$rate || note=$(awk -v a="$rate" -v b="${alone[$name]}" 'BEGIN { printf "  (%.2f of alone)", a / b }')
    printf '  %-32s %9.0f requests/s   p50 %8s   p99 %8s%s%s\n' "$name" "$rate" "$p50" "$p99" "$note" \
        "$([ "$bad" = - ] || echo "  $bad")"
}
all_rows() { # hints first: jobs that have reported have more to tell
    row "PUT /hints (each is committed)" "$1" /hints -s "$tmp/hints.lua"
    row "GET /healthz" "$1" /healthz
    row "GET /api/v1/jobs (100 jobs)" "$1" /api/v1/jobs
}
echo "HTTP API over TCP, 16 connections, wrk beside the server:"
all_rows alone
/usr/bin/python3 - "${url##*/}" "$token" <<'END' &
import socket, sys, time
host, port = sys.argv[1].split(":")
def start(kind):
    s = socket.create_connection((host, int(port)))
    if kind == 0:    # never ends its headers
        s.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
    elif kind == 1:  # never ends its body
        s.send(b"PUT /hints/default/job-0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
               b"Authorization: Bearer %s\r\n\r\n" % sys.argv[2].encode())
    else:            # reads events a byte a second
        s.send(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
               b"Authorization: Bearer %s\r\n\r\n" % sys.argv[2].encode())
    s.settimeout(0.001)
    return s
clients = [start(i % 3) for i in range(100)]
while True:
    time.sleep(1)
    for i, s in enumerate(clients):
        try:
            s.recv(1) if i % 3 == 2 else s.send(b"x")
        except socket.timeout:
            pass
        except OSError:  # shown out: comes back
            clients[i] = start(i % 3)
END
slow=$!
sleep 1
echo "the same with 100 slow clients attached:"
all_rows slow
