#!/usr/bin/env bash
# The operator with a real API server behind a proxy that spoils what goes through (tests/helpers/helper_proxy.c): it is
# killed before and after requests of a job's life; watches are cut and expired; writes meet conflicts, everything 429 or
# a slow server, and a second writer. Each time the job is run once, to its end.
#   ADLT_CRASH_EVERY=N   every Nth request is a crash point (12; 1: all of them, the better part of an hour)
#   ADLT_CRASH_FROM=N    the first one (1)
. "$(dirname "$0")/cluster.bash"
sched=$PWD/build/release/bin/adaptdl-sched proxy=$PWD/build/release/helpers/helper_proxy step=${ADLT_CRASH_EVERY:-12}
[ -x "$sched" ] && [ -x "$proxy" ] || skip "build/release is not built"
[ "$(kubectl get pods -A -l app=adaptdl-sched -o name | wc -l)" = 0 ] || skip "there is an operator already"
kubectl apply --server-side -f kubernetes/crd.yaml >/dev/null &&
    kubectl wait --for=condition=Established crd/adaptdljobs.adaptdl.petuum.com --timeout=60s >/dev/null || exit 1
coproc KUBECTL { exec kubectl proxy --port=0 2>/dev/null; }
kubectl_proxy=$KUBECTL_PID
read -r -u "${KUBECTL[0]}" line && upstream=${line##*:}
proxy_id= sched_id=
printf 'intervalSeconds: 3\nkubernetes: {listen: "127.0.0.1:0", webhookListen: "127.0.0.1:0", supervisorUrl: "http://127.0.0.1:1"}\n' >"$work/config.yaml"
ends() { for id in "$@"; do [ -z "$id" ] || { kill -KILL "$id" && wait "$id"; } 2>/dev/null; done; }
trap 'ends "$sched_id" "$proxy_id" "$kubectl_proxy"; finish' EXIT

spoils() { # KIND N: a proxy, and the operator behind it
    rm -f "$work/port"
    "$proxy" "$upstream" "$work/requests" "$work/pid" "$1" "$2" >"$work/port" &
    proxy_id=$!
    within 60 test -s "$work/port" || exit 1
    cat >"$work/kubeconfig" <<Y
{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "namespace": "default"}}],
 "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:$(cat "$work/port")"}}]}
Y
    starts
}
starts() {
    # the lease of one that was killed would be waited for
    kubectl delete lease adaptdl-sched --ignore-not-found >/dev/null 2>&1
    KUBECONFIG=$work/kubeconfig "$sched" --backend kubernetes --state "$work/state" --config "$work/config.yaml" 2>>"$work/log" &
    sched_id=$!
    echo $sched_id >"$work/pid.new" && mv "$work/pid.new" "$work/pid"
}
# Until the job is over; the operator is started again when it dies, as a Deployment would.
to_the_end() { # JOB
    local until=$((SECONDS + patience))
    until is "$1" phase Succeeded; do
        is "$1" phase Failed && { status "$1" message; return 1; }
        [ $SECONDS -lt $until ] || { echo "$(status "$1" phase): $(status "$1" message); $(tail -n 3 "$work/log")"; return 1; }
        kill -0 "$sched_id" 2>/dev/null || { wait "$sched_id" 2>/dev/null; deaths=$((deaths + 1)); starts; }
        sleep 0.2
    done
}
once() { # JOB: two pods were made, of the first start, and no more
    local count
    count=$(kubectl get events --field-selector reason=Started -o 'jsonpath={range .items[*]}{.involvedObject.name}{"\n"}{end}' |
        grep -c "^$1-$(kubectl get adljob "$1" -o 'jsonpath={.metadata.uid}')-")
    [ "$count" = 2 ] || { echo "$count containers were started"; return 1; }
    is "$1" group 1 || { echo "started $(status "$1" group) times"; return 1; }
}
case_of() { # NAME KIND N
    local name=$1
    deaths=0
    : >"$work/log"
    spoils "$2" "$3"
    job "$name" 2 2 "sleep 1" | kubectl apply -f - >/dev/null
    check "$name: the job comes to its end" to_the_end "$name"
    check "$name: it was run once" once "$name"
    kubectl delete adljob "$name" --wait=false >/dev/null
    check "$name: nothing is left of it" within $patience nothing_behind
    ends "$sched_id" "$proxy_id"
    sched_id= proxy_id=
}
nothing_behind() { # while the operator is there
    kill -0 "$sched_id" 2>/dev/null || starts
    nothing
}

case_of plain none 1
total=$(grep -c . "$work/requests")
cp "$work/requests" "$work/plain"
echo "info - $total requests in the life of a job, without those of the lease"
check "the operator's requests are seen" test "$total" -gt 10
points=0
for ((n = ${ADLT_CRASH_FROM:-1}; n <= total; n += step)); do
    for when in before after; do
        case_of "$when-$n" $when "$n"
        points=$((points + $(grep -c ^killed "$work/requests")))
    done
done
echo "info - killed at $points points"
check "the operator was killed" test $points -gt 0
case_of expired 410 3
check "watches were cut and begun again" test "$(grep -c watch= "$work/requests")" -gt "$(grep -c watch= "$work/plain")"
case_of conflicts 409 2
case_of busy 429 3
case_of slow slow 400
(while :; do for name in $(kubectl get adljobs -o name); do kubectl label --overwrite "$name" "writer=$RANDOM" >/dev/null 2>&1; done; done) &
writer=$!
case_of writer none 1
ends $writer
kubectl delete lease adaptdl-sched --ignore-not-found >/dev/null
exit $failed
