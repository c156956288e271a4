#!/usr/bin/env bash
# A daemon with many jobs: bench_lists.sh BUILD [JOBS [SECONDS]]. No node fits them, so that they wait. Prints how long pages,
# reports beside them, the whole list (against nginx with the same bytes, where it is installed), deleting all take, and the
# processor time of the daemon while nobody asks. Clients and server share the machine.
set -euo pipefail
build=$1 jobs=${2:-10000} seconds=${3:-5}
tmp=$(mktemp -d) daemon= nginx=
clean_up() {
    [ -z "$nginx" ] || kill "$nginx" 2>/dev/null || :
    [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null || :
    rm -rf "$tmp"
}
trap clean_up EXIT
printf 'limits: {requestsPerSecond: 0, maxConnections: 1000}\n' >"$tmp/config.yaml"
"$build/bin/adaptdl-sched" --state "$tmp/state" --config "$tmp/config.yaml" --nodes 1 --slots 1 --listen 127.0.0.1:0 2>"$tmp/log" &
daemon=$!
for _ in $(seq 200); do grep -q ' serves ' "$tmp/log" && break; sleep 0.05; done
url=$(grep -oE 'http://[0-9.]+:[0-9]+' "$tmp/log" | head -n 1)
token=$(cat "$tmp/state/token")
/usr/bin/python3 - "$url" "$token" "$jobs" <<'END'
import concurrent.futures, http.client, json, sys
url, token, jobs = sys.argv[1:]
def submit(first):
    link = http.client.HTTPConnection(url.removeprefix("http://"))
    for i in range(first, int(jobs), 8):
        job = {"apiVersion": "adaptdl.petuum.com/v1", "kind": "AdaptDLJob", "metadata": {"name": f"job-{i}"},
               "spec": {"template": {"spec": {"containers": [{"name": "main", "command": ["sleep", "1"],
                        "resources": {"requests": {"example.com/none": 1}}}]}}}}
        link.request("POST", "/api/v1/jobs", json.dumps(job).encode(), {
            "Content-Type": "application/json", "Authorization": f"Bearer {token}"})
        answer = link.getresponse()
        answer.read()
        assert answer.status == 201, answer.status
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(submit, range(8)))
END
echo "HTTP API over TCP, $jobs jobs that wait, $(nproc) processors for all:"
used() { awk '{ print $14 + $15 }' "/proc/$daemon/stat"; }
sleep 3
before=$(used); sleep 10; after=$(used)
awk -v ticks=$((after - before)) -v hz="$(getconf CLK_TCK)" 'BEGIN { printf "  %-44s %8.1f %% of a processor\n", "nobody asks", 10 * ticks / hz }'
set -- 
if command -v nginx >/dev/null; then
    mkdir -p "$tmp/www"
    curl -s -H "Authorization: Bearer $token" "$url/api/v1/jobs" >"$tmp/www/jobs.json"
    cat >"$tmp/nginx.conf" <<END
user $(id -un) $(id -gn); daemon off; worker_processes 2; pid $tmp/nginx.pid; error_log $tmp/nginx.log;
events { }
http { client_body_temp_path $tmp/body; proxy_temp_path $tmp/proxy; fastcgi_temp_path $tmp/fastcgi; uwsgi_temp_path $tmp/uwsgi;
scgi_temp_path $tmp/scgi; access_log off; sendfile on; keepalive_requests 100000000; server { listen 127.0.0.1:18765; root $tmp/www; } }
END
    nginx -p "$tmp" -c "$tmp/nginx.conf" & nginx=$!
    sleep 1
    set -- 18765
fi
host=${url#http://}
"$build/bench/bench_lists" "${host%:*}" "${host#*:}" "$token" "$seconds" "$@"
before=$(used)
began=$(date +%s.%N)
"$build/bin/adaptdl" delete --all --state "$tmp/state" >"$tmp/deleted"
asked=$(date +%s.%N)
while [ "$(curl -s -H "Authorization: Bearer $token" "$url/api/v1/jobs?limit=1&fields=name")" != '{"items":[],"continue":null}' ]; do sleep 0.1; done
awk -v n="$(wc -l <"$tmp/deleted")" -v a="$asked" -v b="$began" -v c="$(date +%s.%N)" -v ticks=$(($(used) - before)) \
    -v hz="$(getconf CLK_TCK)" 'BEGIN { printf "  delete --all of %d jobs: answered after %.2f s, all gone after %.2f s, %.2f s of a processor\n",
        n, a - b, c - b, ticks / hz }'
