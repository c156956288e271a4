#!/usr/bin/env bash
# The operator on a real cluster, as a user meets it: in a pod, with the rights of kubernetes/operator.yaml and no more.
. "$(dirname "$0")/cluster.bash"

### the resource

kubectl apply --server-side -f kubernetes/crd.yaml >/dev/null || exit 1
kubectl wait --for=condition=Established crd/adaptdljobs.adaptdl.petuum.com --timeout=60s >/dev/null || exit 1
refused() { # TEXT: what kubectl reads is refused in these words; were it taken, it would not be there to be in the way
    kubectl apply --dry-run=server -f - >"$work/refusal" 2>&1 && { echo "taken"; return 1; }
    grep -q "$1" "$work/refusal" || { cat "$work/refusal"; return 1; }
}
check "more replicas at least than at most are refused" refused "maxReplicas must be at least minReplicas" < <(job bad 3 2 true)
check "a name with a dot is refused" refused "must not contain a dot" < <(job a.b 1 2 true)
check "a job without containers is refused" refused "containers" < <(job bad 1 2 true | sed '/containers:/,$d')
check "an unknown field is refused" refused "unknown field" < <(job bad 1 2 true | sed 's/minReplicas/minreplicas/')

### the operator

install "intervalSeconds: 10"

### the webhook

bundle() { [ -n "$(kubectl get validatingwebhookconfiguration adaptdl-sched -o 'jsonpath={.webhooks[0].clientConfig.caBundle}')" ]; }
check "the webhook has its certificate" within $patience bundle
webhook_refuses() { refused "$1" < <(job bad 1 2 true "$2"); }
check "a template that the API server refuses is refused, in its words" within $patience webhook_refuses \
    "denied the request.*spec.template.*volumeMounts" "volumeMounts: [{name: none, mountPath: /x}]"
check "so is an amount that is none" within $patience webhook_refuses "denied the request.*quantities" "resources: {requests: {cpu: lots}}"

job hello 2 2 "$wait_script" | kubectl apply -f - >/dev/null
check "a job runs" within $patience is hello phase Running
[ $failed = 0 ] || { kubectl describe adljob hello; kubectl -n adaptdl logs -l app=adaptdl-sched --tail=20; exit 1; }
check "all its replicas are ready" within $patience is hello readyReplicas 2
check "columns tell" sh -c 'kubectl get adljobs -o wide | grep -E "hello +2 +2 +1 +Running"'
check "its spec cannot be changed" sh -c '! kubectl patch adljob hello --type merge -p "{\"spec\":{\"maxReplicas\":5}}" 2>&1 | grep -v "spec is immutable"'
check "secrets are not in the pods" sh -c '! kubectl get pods -l adaptdl/job=hello -o yaml | grep -E "http://job:"'
check "a replica's log is there" within $patience sh -c 'kubectl logs -l adaptdl/job=hello -c main | grep -q "rank 1 of 2"'

### the operator goes, the job does not

before=$(pods hello)
leads() { # $first: who holds the Lease, and $pod, its pod, which is there
    first=$(leader) pod=${first%-*}
    [ -n "$pod" ] && kubectl -n adaptdl get pod "$pod" >/dev/null
}
new_leader() {
    local now
    now=$(leader)
    [ -n "$now" ] && [ "$now" != "$first" ]
}
check "its pod holds the lease" within $patience leads
kubectl -n adaptdl delete pod "$pod" --grace-period=0 --force >/dev/null 2>&1
check "another operator leads" within $patience new_leader
check "its replicas are those from before" test "$before" = "$(pods hello)"
check "they are let go" within 60 let_go hello
check "it succeeds under the new operator" within $patience is hello phase Succeeded
check "it was started once" is hello group 1
check "its pods stay for their logs" sh -c 'kubectl logs -l adaptdl/job=hello -c main | grep -q "rank 0 of 2"'

### two operators

kubectl -n adaptdl scale deployment/adaptdl-sched --replicas=2 >/dev/null
job second 1 1 "$wait_script" | kubectl apply -f - >/dev/null
check "a job runs beside an operator that waits" within $patience is second phase Running
check "one of the two holds the lease" within $patience leads
kubectl -n adaptdl delete pod "$pod" --grace-period=0 --force >/dev/null 2>&1
from=$SECONDS
check "the one that waited takes over" within $patience new_leader
echo "info - it led after $((SECONDS - from)) s"
check "the replica is let go" within 60 let_go second
check "the job succeeds under it" within $patience is second phase Succeeded
kubectl -n adaptdl scale deployment/adaptdl-sched --replicas=1 >/dev/null

### what goes wrong is told

job exits 1 1 "echo broken; exit 3" | kubectl apply -f - >/dev/null
check "a failure is told" within $patience is exits phase Failed
check "with its exit code and its last words" says exits message "exited with 3.*" 
check "and its output" sh -c 'kubectl get adljob exits -o jsonpath="{.status.message}" | grep -q broken'
job image 1 1 "true" "imagePullPolicy: IfNotPresent" "nowhere.invalid/none:1" | kubectl apply -f - >/dev/null
check "an image that cannot be had is told at once" within $patience says image message "ImagePull"
job memory 1 1 'a=x; while :; do a=$a$a; done' "resources: {limits: {memory: 64Mi}}" | kubectl apply -f - >/dev/null
check "too much memory is told" within $patience is memory reason OOMKilled
job program 1 1 true | sed 's#command: .*#command: [/no/such/program]#' | kubectl apply -f - >/dev/null
check "a program that is not there is told" within $patience says program message "no such file"
job large 1 1 true "resources: {requests: {cpu: 1000}}" | kubectl apply -f - >/dev/null
check "a job that fits nowhere is told" within $patience is large reason Unschedulable
kubectl create namespace small >/dev/null 2>&1
kubectl -n small create quota none --hard=pods=0 >/dev/null 2>&1
job crowded 1 1 true | kubectl -n small apply -f - >/dev/null
check "a quota is told" within $patience sh -c 'kubectl -n small describe adljob crowded | grep -q "exceeded quota"'

### nodes

job moves 1 1 "$wait_script" | kubectl apply -f - >/dev/null
check "a job runs on a node" within $patience is moves phase Running
node=$(kubectl get adljob moves -o 'jsonpath={.status.allocation[0]}')
kubectl cordon "$node" >/dev/null
elsewhere() { is moves phase Running && [ "$(kubectl get adljob moves -o 'jsonpath={.status.allocation[0]}')" != "$node" ]; }
check "from a cordoned node it moves to another" within $patience elsewhere
kubectl uncordon "$node" >/dev/null
evicted=$(kubectl get pods -l adaptdl/job=moves --field-selector=status.phase=Running -o 'jsonpath={.items[0].metadata.name}')
group=$(status moves group)
echo "{\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"$evicted\",\"namespace\":\"default\"}}" |
    kubectl create --raw "/api/v1/namespaces/default/pods/$evicted/eviction" -f - >/dev/null
again() { is moves phase Running && [ "$(status moves group)" -gt "$group" ]; }
check "an evicted replica is started again" within $patience again
check "and that is no failure" sh -c '[ "$(kubectl get adljob moves -o jsonpath={.status.scheduler.failures})" = 0 ]'

### the end

kubectl delete namespace small --wait=false >/dev/null 2>&1
uninstall
exit $failed
