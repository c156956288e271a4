#!/usr/bin/env bash
# A cluster that grows for the jobs and shrinks after them, and nodes that a cloud takes back. The nodes are pretended by
# kwok, the autoscaler is a script; scheduler, placeholders and operator are real.
export ADLT_UP="-k 1" # with kwok
. "$(dirname "$0")/cluster.bash"
. "$(dirname "$0")/autoscaler.bash"
[ $ours = 1 ] || kubectl get pods -A -o name 2>/dev/null | grep -q kwok || [ -n "${ADLT_KWOK:-}" ] ||
    skip "no kwok on this cluster (ADLT_KWOK=1 says that there is)"
cleanup() {
    [ -z "${scaler:-}" ] || kill "$scaler" 2>/dev/null
    kubectl taint nodes -l '!pool' adaptdl-test- >/dev/null 2>&1
    kubectl delete nodes -l pool=cloud --wait=false >/dev/null 2>&1
    finish
}
trap cleanup EXIT

install "intervalSeconds: 3
autoscale: {maxNodes: 5, nodeSelector: 'pool=cloud'}"
# only nodes of the cloud are for jobs
kubectl taint nodes -l '!pool' adaptdl-test=real:NoSchedule --overwrite >/dev/null

holders() { kubectl -n adaptdl get pods -l adaptdl/placeholder -o name | wc -l; }
has_holders() { [ "$(holders)" = "$1" ]; }
has_nodes() { [ "$(cloud_nodes | wc -l)" = "$1" ]; }
big() { job "$1" "$2" "$3" true "resources: {requests: {cpu: 3}}"; }

big first 1 1 | kubectl apply -f - >/dev/null
check "without any node a job waits for one" within $patience is first reason WaitingForNodes
check "and one is asked for" within $patience has_holders 1
check "by a pod of the operator's deployment, in the lowest class" sh -c '[ "$(kubectl -n adaptdl get pods -l adaptdl/placeholder -o jsonpath="{.items[0].metadata.ownerReferences[0].kind} {.items[0].spec.priority}")" = "Deployment -10" ]'
autoscaler &
scaler=$!
check "from no node there becomes one, and the job runs" within $patience is first phase Running
big second 3 3 | kubectl apply -f - >/dev/null
check "a job that needs three nodes gets them" within $patience is second phase Running
check "placeholders are not on one node twice" sh -c '[ -z "$(kubectl -n adaptdl get pods -l adaptdl/placeholder -o jsonpath="{range .items[*]}{.spec.nodeName}{\"\\n\"}{end}" | grep . | sort | uniq -d)" ]'

### a cloud takes nodes back

leaves() { # JOB NODE: it runs, and not there
    is "$1" phase Running && ! kubectl get adljob "$1" -o 'jsonpath={.status.allocation}' | grep -q "\"$2\""
}
node=$(node_of first)
kubectl annotate node "$node" aws-node-termination-handler/event-id=spot-itn-1 >/dev/null
check "a notice by annotation (AWS) drains a node" within $patience leaves first "$node"
kubectl delete node "$node" >/dev/null
node=$(node_of second)
kubectl taint node "$node" cloud.google.com/impending-node-termination=:NoSchedule >/dev/null
check "a notice by taint (GKE) drains a node" within $patience leaves second "$node"
kubectl delete node "$node" >/dev/null
check "no failure is counted" sh -c '[ "$(kubectl get adljob first second -o jsonpath="{.items[*].status.scheduler.failures}")" = "0 0" ]'

### back to none

kubectl delete adljob first second --wait=false >/dev/null
check "without jobs no node is asked for" within $patience has_holders 0
check "and all of them go" within $patience has_nodes 0

### a budget

kill "$scaler"
wait "$scaler" 2>/dev/null
sed "s#image: .*adaptdl-sched.*#image: $image#; s#intervalSeconds: 60#intervalSeconds: 3\n    autoscale: {maxNodes: 5, nodeSelector: 'pool=cloud', nodePrice: 2, budget: 4.5}#" \
    kubernetes/operator.yaml | kubectl apply -f - >/dev/null
kubectl -n adaptdl patch deployment adaptdl-sched --type merge -p '{"spec":{"template":{"spec":{"tolerations":[{"key":"adaptdl-test","operator":"Exists"}]}}}}' >/dev/null
check "the operator takes a budget" kubectl -n adaptdl rollout status deployment/adaptdl-sched --timeout=${patience}s
autoscaler &
scaler=$!
for name in a b c d; do big "paid-$name" 1 1 | kubectl apply -f - >/dev/null; done
running() { [ "$(kubectl get adljobs --field-selector status.phase=Running -o name | wc -l)" = "$1" ]; }
check "4.5 an hour pay for two nodes at 2" within $patience running 2
check "and no more are asked for" has_holders 2
uninstall
exit $failed
