# Sourced by the tests here: a cluster to run on, and helpers. With KUBECONFIG set, that cluster, on which the images
# k8s.local/busybox:1 (ADLT_BUSYBOX) and localhost/adaptdl-sched:latest (ADLT_IMAGE) can be had. Else one made by the
# scripts in ../shared/k8s, taken down at the end; where that cannot be, the tests are skipped.
# shellcheck shell=bash
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
busybox=${ADLT_BUSYBOX:-k8s.local/busybox:1} image=${ADLT_IMAGE:-localhost/adaptdl-sched:latest}
work=$(mktemp -d)
own=0 ours=0 failed=0 patience=300

skip() { echo "skip - $(basename "$0" .sh): $*"; exit 0; }
finish() {
    [ $own = 1 ] && "$kit/down" >/dev/null 2>&1
    rm -rf "$work"
}
load() { # IMAGE.tar...: into the nodes of a cluster of ours
    [ $ours = 0 ] || "$kit/load" "$@" >"$work/load.log" 2>&1 || { echo "not ok - load: $(tail -n 1 "$work/load.log")"; exit 1; }
}
trap finish EXIT
trap 'exit 1' INT TERM

kit=$PWD/../shared/k8s
if [ -z "${KUBECONFIG:-}" ]; then
    export K8S_DIR=${K8S_DIR:-$PWD/build/k8s}
    tools/build-k8s >"$work/build.log" || skip "no KUBECONFIG, and $(tail -n 1 "$work/build.log")"
    export PATH=$K8S_DIR/bin:$PATH
    own=1 ours=1
    K8S_NODE_GRACE=${K8S_NODE_GRACE:-40s} "$kit/up" -n 2 ${ADLT_UP:-} >"$work/up.log" 2>&1 || { echo "not ok - up: $(tail -n 1 "$work/up.log")"; exit 1; }
    export KUBECONFIG=$K8S_DIR/kubeconfig
    load build/image/adaptdl-sched.tar
fi
# one that the scripts brought up before, and that stays
[ -x "$kit/up" ] && [ -n "${K8S_DIR:-}" ] && [ "$KUBECONFIG" = "$K8S_DIR/kubeconfig" ] && ours=1
command -v kubectl >/dev/null || skip "no kubectl"
kubectl get --raw /readyz >/dev/null 2>&1 || skip "the cluster of KUBECONFIG does not answer"

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

# install CONFIG [FIELD]: the resource and the operator, with that configuration (lines of YAML), and one more field of
# its section kubernetes.
install() {
    kubectl apply --server-side -f kubernetes/crd.yaml >/dev/null &&
        kubectl wait --for=condition=Established crd/adaptdljobs.adaptdl.petuum.com --timeout=60s >/dev/null || exit 1
    printf '%s\n' "$1" | sed 's/^/    /' >"$work/config"
    sed "s#image: .*adaptdl-sched.*#image: $image#; /intervalSeconds: 60/{
        r $work/config
        d
    }; s#^\( *\)apiListen: .*#&${2:+\n\1$2}#" kubernetes/operator.yaml | kubectl apply -f - >/dev/null || exit 1
    check "the operator becomes ready" kubectl -n adaptdl rollout status deployment/adaptdl-sched --timeout=${patience}s
    [ $failed = 0 ] || { kubectl -n adaptdl describe pods | tail -n 20; kubectl -n adaptdl logs -l app=adaptdl-sched --tail=5; exit 1; }
}
uninstall() {
    kubectl delete adljobs -A --all --wait=false >/dev/null 2>&1
    check "nothing is left of deleted jobs" within $patience nothing
    kubectl delete -f kubernetes/operator.yaml --timeout=${patience}s >/dev/null 2>&1
}
nothing() { [ -z "$(kubectl get pods,secrets -A -l adaptdl=true -o name)" ]; }
leader() { kubectl -n adaptdl get lease adaptdl-sched -o jsonpath='{.spec.holderIdentity}'; }
# A script for jobs that run until they are let go.
wait_script='trap "exit 143" TERM; echo rank $ADAPTDL_REPLICA_RANK of $ADAPTDL_NUM_REPLICAS; while [ ! -e /dev/shm/go ]; do sleep 0.2; done'
let_go() { # JOB: every replica ends with 0; a busy API server may want to be asked again: within 60 let_go JOB
    local replica all
    all=$(kubectl get pods -l "adaptdl/job=$1" --field-selector=status.phase=Running -o name) || return 1
    [ -n "$all" ] || is "$1" phase Succeeded || return 1
    for replica in $all; do
        kubectl exec "$replica" -c main -- touch /dev/shm/go || return 1
    done
}
pods() { kubectl get pods -l "adaptdl/job=$1" -o 'jsonpath={range .items[*]}{.metadata.name}={.metadata.uid} {end}'; }
# on_volume CLAIM SCRIPT: what a script (without single quotes) says in a pod that sees the claim at /data.
on_volume() {
    kubectl delete pod volume --ignore-not-found --wait >/dev/null 2>&1
    kubectl apply -f - >/dev/null <<Y || return 1
apiVersion: v1
kind: Pod
metadata: {name: volume}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: $busybox, command: [/bin/sh, -c, '$2'], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: $1}}]
Y
    within "$patience" sh -c '[ "$(kubectl get pod volume -o jsonpath={.status.phase})" = Succeeded ]' >/dev/null && kubectl logs volume &&
        kubectl delete pod volume --wait=false >/dev/null
}
node_of() { kubectl get adljob "$1" -o "jsonpath={.status.allocation[${2:-0}]}"; }
