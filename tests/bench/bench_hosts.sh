#!/usr/bin/env bash
# Gradient all-reduce between two "hosts", beside Gloo: network namespaces joined by a pair of virtual
# interfaces, with 1, 2 ... processes on each. bench_hosts.sh [BUILD [ROUNDS]]; ours and Gloo's runs take turns,
# medians of the rounds of rank 0's medians. PYTHON names an interpreter with torch; PREFIX is put before
# each process ("chrt -r 5" on a machine that is busy). Needs root and iproute2.
set -u
cd "$(dirname "$0")/../.."
build=${1:-build/release} rounds=${2:-3} python=${PYTHON:-/usr/bin/python3}
sizes=(26214400 104857600)
tag=adlb$$
command -v ip >/dev/null && [ "$(id -u)" -eq 0 ] && ip netns add "$tag-0" 2>/dev/null ||
    { echo "between hosts: skipped, needs root and network namespaces"; exit 0; }
log=$(mktemp)
clean() { for i in 0 1; do ip netns del "$tag-$i" 2>/dev/null; done; rm -f "$log"; }
trap clean EXIT
ip netns add "$tag-1"
ip -n "$tag-0" link add eth0 type veth peer name eth0 netns "$tag-1"
for i in 0 1; do
    ip -n "$tag-$i" addr add "10.98.0.$((i + 1))/24" dev eth0
    ip -n "$tag-$i" link set eth0 up
    ip -n "$tag-$i" link set lo up
done

# on HOST COMMAND...: in that host's namespace
on() {
    local host=$1
    shift
    # shellcheck disable=SC2086
    ip netns exec "$tag-$host" timeout 300 ${PREFIX:-} "$@"
}
# ours|gloo EACH PORT: one run with EACH processes per host; rank 0's lines
ours() {
    for ((r = 2 * $1 - 1; r >= 0; r--)); do
        on $((r / $1)) "$build/bench/bench_allreduce" --transport auto --replicas $((2 * $1)) --rank $r \
            --master 10.98.0.1 --port "$2" --host "host$((r / $1))" "${sizes[@]}" &
    done
    wait
}
gloo() {
    for ((r = 2 * $1 - 1; r >= 0; r--)); do
        GLOO_SOCKET_IFNAME=eth0 on $((r / $1)) "$python" tests/bench/gloo_allreduce.py --member \
            $r $((2 * $1)) 10.98.0.1 "$2" "${sizes[@]}" &
    done
    wait
}
port=29600 names=(ours)
if "$python" -c 'import torch.distributed' 2>/dev/null; then
    names+=(gloo)
else
    echo "gloo: skipped, $python has no torch (Debian: python3-torch)"
fi
for each in 1 2; do
    for ((round = 0; round < rounds; round++)); do
        for name in "${names[@]}"; do
            "$name" "$each" $((port++)) | sed "s/^/$each $name /" >>"$log"
        done
    done
done
sort -n -k 1,1 -k 4,4 -k 5,5 "$log" | awk '
    { key = $1 " " $4; if (!(key in seen)) { seen[key] = 1; order[++n] = key }
      count[key, $2]++; us[key, $2, count[key, $2]] = $5; cpu[key, $2, count[key, $2]] = $7; how[key, $2] = $3 }
    function middle(a, k, w,   c, i, j, v, x) {
        c = count[k, w]
        if (c == 0) return 0
        for (i = 1; i <= c; i++) v[i] = a[k, w, i]
        for (i = 1; i <= c; i++) for (j = i + 1; j <= c; j++) if (v[j] < v[i]) { x = v[i]; v[i] = v[j]; v[j] = x }
        return v[int((c + 1) / 2)]
    }
    END {
        printf "%-24s %8s %10s %10s %10s %12s %12s\n", "two hosts, processes", "size", "ours", "gloo", "gloo/ours", "our CPU", "gloo CPU"
        for (i = 1; i <= n; i++) {
            split(order[i], k, " ")
            a = middle(us, order[i], "ours"); b = middle(us, order[i], "gloo")
            printf "%-24s %5d MB %7.1f ms %7.1f ms %10s %9.1f ms %9.1f ms\n", k[1] " on each (" how[order[i], "ours"] ")", k[2] / 1048576, a / 1000, b / 1000, a && b ? sprintf("%.2f", b / a) : "-", middle(cpu, order[i], "ours") / 1000, middle(cpu, order[i], "gloo") / 1000
        }
    }'
