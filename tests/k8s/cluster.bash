# Sourced by the tests here: a cluster to run on, and helpers. With KUBECONFIG set, that cluster, on which the images
# k8s.local/busybox:1 (ADLT_BUSYBOX) and localhost/adaptdl-sched:latest (ADLT_IMAGE) can be had. Else one made by the
# scripts in ../shared/k8s, taken down at the end; where that cannot be, the tests are skipped.
# shellcheck shell=bash
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
busybox=${ADLT_BUSYBOX:-k8s.local/busybox:1} image=${ADLT_IMAGE:-localhost/adaptdl-sched:latest}
work=$(mktemp -d)
own=0 failed=0

skip() { echo "skip - $(basename "$0" .sh): $*"; exit 0; }
finish() {
    [ $own = 1 ] && "$kit/down" >/dev/null 2>&1
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM

kit=$PWD/../shared/k8s
if [ -z "${KUBECONFIG:-}" ]; then
    [ "$(id -u)" = 0 ] || skip "no KUBECONFIG, and no root to bring a cluster up"
    [ -x "$kit/up" ] || skip "no KUBECONFIG, and no scripts to bring a cluster up"
    command -v go >/dev/null || [ -x /usr/local/go/bin/go ] || [ -n "${K8S_DIR:-}" ] || skip "no KUBECONFIG, and no Go to build a cluster with"
    export K8S_DIR=${K8S_DIR:-$PWD/build/k8s}
    export PATH=$K8S_DIR/bin:/usr/local/go/bin:$PATH
    [ -e "$K8S_DIR/bin/stamp" ] || "$kit/build" >"$work/build.log" 2>&1 ||
        skip "the cluster could not be built: $(tail -n 1 "$work/build.log")"
    own=1
    "$kit/up" -n 2 >"$work/up.log" 2>&1 || { echo "not ok - up: $(tail -n 1 "$work/up.log")"; exit 1; }
    export KUBECONFIG=$K8S_DIR/kubeconfig
    "$kit/load" build/image/adaptdl-sched.tar >"$work/load.log" 2>&1 || { echo "not ok - load: $(tail -n 1 "$work/load.log")"; exit 1; }
fi
command -v kubectl >/dev/null || skip "no kubectl"

# check NAME COMMAND...: one line for the command's success; what it said when it failed.
check() {
    local name=$1
    shift
    if "$@" >"$work/said" 2>&1; then echo "ok - $name"; else
        failed=1
        echo "not ok - $name: $(tr '\n' ' ' <"$work/said" | cut -c1-400)"
    fi
}
# within SECONDS COMMAND...: until it succeeds.
within() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $until ] || { echo "not within its time: $*"; return 1; }
        sleep 0.3
    done
}
status() { kubectl get adljob "$1" -o "jsonpath={.status.$2}" 2>/dev/null; }
is() { [ "$(status "$1" "$2")" = "$3" ]; }
says() { status "$1" "$2" | grep -q "$3"; }
# job NAME MIN MAX SCRIPT [FIELD [IMAGE]]: a job whose main container runs the script (which has no single quotes), with
# one more field.
job() {
    local usual="resources: {requests: {cpu: 50m, memory: 16Mi}}"
    local more=${5:-$usual}
    cat <<J
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {name: "$1"}
spec:
  minReplicas: $2
  maxReplicas: $3
  maxRetries: 0
  template:
    spec:
      terminationGracePeriodSeconds: 20
      containers:
      - name: main
        image: ${6:-$busybox}
        command: [/bin/sh, -c, '$4']
        $more
J
}
