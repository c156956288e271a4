#!/usr/bin/env bash
# Kubernetes as people use it: the chart is installed with helm, and `adaptdl` does the rest, from submit to cp.
. "$(dirname "$0")/cluster.bash"
. "$(dirname "$0")/people.bash"

### the chart

check "the chart passes helm lint" helm lint --strict charts/adaptdl-sched
check "the plain manifest is what the chart makes" tools/manifest --check
check "a value of the wrong kind is refused" fails 1 "replicas" helm template a charts/adaptdl-sched --kube-version 1.31.0 --set sched.replicas=many
check "a value that is not known is refused" fails 1 "shced" helm template a charts/adaptdl-sched --kube-version 1.31.0 --set shced.replicas=1
check "a patch that is none is refused" fails 1 "job.patch\|/job/patch" helm template a charts/adaptdl-sched --kube-version 1.31.0 --set 'job.patch.pods[0].op=move' --set 'job.patch.pods[0].path=/a'
# --reuse-values leaves out what an older chart did not have
before() { diff <(helm template a charts/adaptdl-sched --kube-version 1.31.0 2>/dev/null) \
    <(helm template a charts/adaptdl-sched --kube-version 1.31.0 --set job=null --set tokens=null --set docker-registry=null --set dashboard=null 2>/dev/null); }
check "the values of before mean what they meant" before
renders() { helm template a charts/adaptdl-sched -n adaptdl --kube-version 1.31.0 "$@" 2>/dev/null >"$work/rendered"; }
usual() { renders && ! grep -E "kind: (ServiceMonitor|NetworkPolicy)|name: adaptdl-dashboard|adaptdl-registry$" "$work/rendered"; }
check "what is optional is off" usual
with() { # TEXT SETTING...: the chart has the line then
    local text=$1
    shift
    renders "$@" && grep -q -- "$text" "$work/rendered"
}
check "a ServiceMonitor reads the metrics with the token" with "credentials: {name: adaptdl-sched-token, key: token}" --set serviceMonitor.enabled=true
check "it carries the labels that it is found by" with "release: mine" --set serviceMonitor.enabled=true --set serviceMonitor.labels.release=mine
dashboard() {
    renders --set dashboard.enabled=true -s templates/dashboard.yaml && grep -q 'grafana_dashboard: "1"' "$work/rendered" &&
        sed '1,/adaptdl.json: |/d; s/^    //' "$work/rendered" | diff -B - grafana/dashboard.json
}
check "the dashboard's ConfigMap is the dashboard" dashboard
check "a NetworkPolicy lets replicas in" with "kind: NetworkPolicy" --set networkPolicy.enabled=true --set 'networkPolicy.apiServer={10.0.0.1/32}'
check "and needs to know the API server" fails 1 networkPolicy.apiServer helm template a charts/adaptdl-sched --kube-version 1.31.0 --set networkPolicy.enabled=true
check "nobody is there to ask before it is installed" fails 5 "no AdaptDL scheduler" "$adaptdl" ls
check "it is installed" release install --create-namespace
[ $failed = 0 ] || { kubectl -n adaptdl get pods; kubectl -n adaptdl logs -l app=adaptdl-sched --tail=5; exit 1; }

### a job of files, beside a stock image

mkdir "$work/job"
cat >"$work/job/hello.sh" <<'S'
echo "Hello, world! rank $ADAPTDL_REPLICA_RANK of $ADAPTDL_NUM_REPLICAS in start $ADAPTDL_NUM_RESTARTS"
[ "$ADAPTDL_REPLICA_RANK" = 0 ] && printf 'Hello, world!' >"$ADAPTDL_SHARE_PATH/foo.txt"
trap 'exit 143' TERM
while [ ! -e "$ADAPTDL_SHARE_PATH/go" ]; do sleep 0.2; done
S
printf 'FROM any\nCOPY hello.sh /root/hello.sh\nENV GREETING=hello\n' >"$work/job/Dockerfile"
cat >"$work/job/adaptdljob.yaml" <<'S'
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {generateName: hello-}
spec:
  minReplicas: 2
  maxReplicas: 2
  template:
    spec:
      containers:
      - {name: main, command: [/bin/sh, /root/hello.sh], resources: {requests: {cpu: 50m, memory: 16Mi}}}
S
check "context says where commands go" said "KUBECONFIG is set" "$adaptdl" context
dry() { fails 2 "denied the request" "$adaptdl" submit --dry-run --image "$busybox" -f - \
    <<<"$(sed 's#name: main,#name: main, volumeMounts: [{name: none, mountPath: /x}],#' "$work/job/adaptdljob.yaml")"; }
check "a dry run is checked by the cluster" within $patience dry # once the webhook has its certificate
submit() { "$adaptdl" submit --source --image "$busybox" --checkpoint-storage-size 64Mi "$work/job" >"$work/name"; }
check "a directory is submitted" submit
[ $failed = 0 ] || exit 1
mine=$(cat "$work/name")
check "it runs" "$adaptdl" wait --for Running --timeout $patience "$mine"
check "ls shows it" said "$mine *Running" "$adaptdl" ls
check "so does its JSON" said '"phase": "Running"' "$adaptdl" ls -o json
check "describe tells of it" said "2, 2 ready" "$adaptdl" describe "$mine"
check "nodes show it" said "default/$mine x2\|default/$mine x1" "$adaptdl" nodes -o wide
check "explain knows it" within $patience said "node" "$adaptdl" explain "$mine"
check "top shows it" said "$mine" "$adaptdl" top --once
check "so does the dashboard, whose page the scheduler serves" said "<title>AdaptDL" \
    kubectl get --raw "/api/v1/namespaces/adaptdl/services/https:adaptdl-supervisor:api/proxy/"
check "events tell of it" said "Starting -> Running" "$adaptdl" events --job "$mine"
check "logs of all ranks" within $patience said "\[1\] Hello, world! rank 1 of 2" "$adaptdl" logs --no-follow --all-ranks "$mine"
check "a program beside a replica" said hello "$adaptdl" exec --rank 1 "$mine" -- sh -c 'echo $GREETING' </dev/null
check "its exit status is that of exec" fails 7 "" "$adaptdl" exec "$mine" -- sh -c 'exit 7' </dev/null
echo "what it hears" >"$work/in"
check "it hears standard input, and its end" said "what it hears" "$adaptdl" exec "$mine" -- cat <"$work/in"

check "a replica reaches the scheduler by the name of its service" within $patience said ok "$adaptdl" exec "$mine" -- wget -q -O - http://adaptdl-supervisor.adaptdl:8080/healthz </dev/null

### restarts

group=$(status "$mine" group)
pod=$(kubectl get pods -l "adaptdl/job=$mine" --field-selector=status.phase=Running -o 'jsonpath={.items[0].metadata.name}')
: >"$work/followed"
"$adaptdl" logs "$mine" >"$work/followed" 2>&1 &
follower=$!
within $patience grep -q "rank 0 of 2 in start 0" "$work/followed"
kubectl delete pod "$pod" --wait=false >/dev/null
again() { is "$mine" phase Running && [ "$(status "$mine" group)" -gt "$group" ]; }
check "a replica that is deleted comes again" within $patience again
check "the job ends well" sh -c "$adaptdl exec $mine -- touch /adaptdl/share/go </dev/null && $adaptdl wait --timeout $patience $mine"
check "logs followed it over its restart, to its end" within $patience sh -c "! kill -0 $follower 2>/dev/null && grep -q 'in start 1' $work/followed"
check "a file is copied when it is over" sh -c "$adaptdl cp $mine:/adaptdl/share/foo.txt $work/foo.txt && [ \"\$(cat $work/foo.txt)\" = 'Hello, world!' ]"
check "a directory, too" sh -c "$adaptdl cp $mine:/adaptdl/share $work/all && [ -e $work/all/foo.txt ]"
check "a file that is not there is told" fails 4 "o such file" "$adaptdl" cp "$mine:/adaptdl/share/none" "$work/none"
check "no pod of it stays" test -z "$(kubectl get pods -l adaptdl-files=true -o name)"
check "what cannot be is said" fails 6 "on Kubernetes" "$adaptdl" suspend "$mine"

### TensorBoard: its objects

check "a TensorBoard is made" said "board created" "$adaptdl" tensorboard create board
check "once" fails 6 "already" "$adaptdl" tensorboard create board
check "and listed" said board "$adaptdl" tensorboard list
check "its claim is mounted" sh -c "$adaptdl submit --no-build --image $busybox --tensorboard board --dry-run $work/job"
check "it goes" said "board deleted" "$adaptdl" tensorboard delete board
check "with its claim" within $patience sh -c '! kubectl get pvc adaptdl-tensorboard-board 2>/dev/null'

### TensorBoard: what it shows

board=build/image/tensorboard tensorboard=localhost/adaptdl-tensorboard:1 writer=build/release/helpers/helper_tensorboard
# its programs are those of the image: Debian's Python, whatever another is called here
[ -e $board/ready-debian ] || [ $ours = 0 ] || { rm -rf $board && /usr/bin/python3 -m pip install -q --target $board tensorboard >"$work/log" 2>&1 && touch $board/ready-debian; }
if [ $ours = 1 ] && [ -e $board/ready-debian ] && [ -x $writer ]; then
    tools/image -o "$work/board.tar" $tensorboard -d python3 -d python3-pkg-resources -c $board:/opt/tensorboard \
        -c $board/bin/tensorboard:/usr/bin/tensorboard -e PYTHONPATH=/opt/tensorboard $writer >/dev/null || exit 1
    load "$work/board.tar"
    rm "$work/board.tar"
    check "a TensorBoard is made of an image of ours" env ADAPTDL_TENSORBOARD_IMAGE=$tensorboard "$adaptdl" tensorboard create board
    job writes 1 1 x | sed 's#command: .*#command: [helper_tensorboard, /adaptdl/tensorboard/run-1]#' >"$work/writes.yaml"
    check "a job is submitted that writes to it" "$adaptdl" submit --no-build --image $tensorboard --tensorboard board -f "$work/writes.yaml" "$work/job"
    check "it ends well" "$adaptdl" wait --timeout $patience writes
    check "it is there" kubectl rollout status deployment/adaptdl-tensorboard-board --timeout=${patience}s
    "$adaptdl" tensorboard proxy board --port 16006 >"$work/proxied" 2>&1 &
    proxied=$!
    shown() { curl -s -m 10 http://localhost:16006/data/plugin/scalars/tags | grep -q '"run-1".*"Loss/train"' || { cat "$work/proxied"; return 1; }; }
    check "through a port it shows what the job wrote" within $patience shown
    kill $proxied
    wait $proxied 2>/dev/null
    check "it and the job go" sh -c "$adaptdl delete --wait writes && $adaptdl tensorboard delete board"
else
    echo "skip - TensorBoard: $(tail -n 1 "$work/log" 2>/dev/null || echo "no image of it can be loaded here")"
fi

### who may do what

kubectl create serviceaccount people >/dev/null
kubectl create rolebinding people --clusterrole=edit --serviceaccount=default:people >/dev/null
cat >"$work/log-in" <<S
#!/bin/sh
KUBECONFIG=$KUBECONFIG kubectl create token people | sed 's/\(.*\)/{"apiVersion":"client.authentication.k8s.io\/v1","kind":"ExecCredential","status":{"token":"\1"}}/'
S
chmod +x "$work/log-in"
server=$(kubectl config view --raw -o 'jsonpath={.clusters[0].cluster.server}')
ca=$(kubectl config view --raw --flatten -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}')
cat >"$work/limited" <<S
current-context: c
clusters: [{name: c, cluster: {server: "$server", certificate-authority-data: $ca}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: ./log-in, interactiveMode: Never}}}]
S
limited() { KUBECONFIG=$work/limited "$adaptdl" "$@"; }
check "who may edit a namespace reads logs there, logged in by a program" said "Hello" limited logs --no-follow "$mine"
check "but may not ask the scheduler" fails 6 "forbidden" limited ls
check "nor change nodes" fails 6 "forbidden" limited drain node1
check "users of the chart may" release upgrade --set 'users[0].kind=ServiceAccount' --set 'users[0].name=people' --set 'users[0].namespace=default'
check "and then ask" within $patience said "$mine" limited ls
check "the token opens the proxy, and nothing else does" fails 1 "provide credentials\|token" \
    kubectl get --raw "/api/v1/namespaces/adaptdl/services/https:adaptdl-supervisor:api/proxy/api/v1/jobs"

### what a job's pod may do

as_job() { kubectl --as=system:serviceaccount:default:default --as-group=system:serviceaccounts --as-group=system:authenticated "$@"; }
nothing_of_ours() { # it may ask for what everybody may, and nothing more: no resource of ours or of the cluster
    as_job auth can-i --list >"$work/may" && grep -q selfsubjectaccessreviews "$work/may" &&
        ! grep -E "adaptdl|secrets|pods|nodes|configmaps|deployments|leases" "$work/may"
}
check "jobs' service account has no rights by the chart" nothing_of_ours
check "it reads no Secret of the scheduler" fails 1 "orbidden" as_job -n adaptdl get secret adaptdl-sched-token
check "nor lists them" fails 1 "orbidden" as_job -n adaptdl get secrets
check "and makes no job" fails 1 "orbidden" as_job create -f - < <(job sneaks 1 1 true)
check "who may edit a namespace reads no Secret of the scheduler's" fails 1 "orbidden" env KUBECONFIG="$work/limited" kubectl -n adaptdl get secret adaptdl-sched-key

### for all jobs

check "the administrator adds to the pods of all jobs" release upgrade --set job.defaultResources.requests.cpu=70m --set tokens=false \
    --set 'users[0].kind=ServiceAccount' --set 'users[0].name=people' --set 'users[0].namespace=default' \
    --set-json 'job.patch={"pods":[{"op":"add","path":"/metadata","value":{"labels":{"team":"a"}}}],"containers":[{"op":"add","path":"/workingDir","value":"/tmp"}]}'
job plain 1 1 "$wait_script" 'stdin: false' | kubectl apply -f - >/dev/null
check "a job that names no resources runs" within $patience is plain phase Running
dressed() { kubectl get pods -l team=a,adaptdl/job=plain -o 'jsonpath={.items[0].spec.containers[0].resources.requests.cpu} {.items[0].spec.containers[0].workingDir}' | grep -qx '70m /tmp'; }
check "with those of the administrator, and the patches" dressed
check "a client that knows no tokens finds its replicas" within $patience said '\[' "$adaptdl" exec plain -- wget -q -O - http://adaptdl-supervisor.adaptdl:8080/discover/default/plain/0 </dev/null
kubectl delete adljob plain >/dev/null
check "all that is taken back" release upgrade --set 'users[0].kind=ServiceAccount' --set 'users[0].name=people' --set 'users[0].namespace=default'
check "and it can be asked again" within $patience said "$mine" "$adaptdl" ls
check "rerun makes another, with a claim of its own" sh -c "$adaptdl rerun $mine >$work/again && kubectl get pvc adaptdl-\$(cat $work/again)"
again=$(cat "$work/again")
check "it runs as well" "$adaptdl" wait --for Running --timeout $patience "$again"

### without the scheduler

check "the chart is removed while a job runs" helm uninstall adaptdl -n adaptdl --wait --timeout ${patience}s
check "which runs on" test 2 = "$(kubectl get pods -l "adaptdl/job=$again" --field-selector=status.phase=Running -o name | wc -l)"
check "and is there when it is installed again" release install
check "with its replicas" is "$again" group 1
check "deleted jobs go with all that is theirs" "$adaptdl" delete --wait "$mine" "$again"
nothing() { [ -z "$(kubectl get pods,pvc,configmaps,secrets -l "adaptdl/job" -o name)" ]; }
check "nothing is left of them" within $patience nothing
check "the chart is removed" helm uninstall adaptdl -n adaptdl --wait --timeout ${patience}s
check "with everything of it but what it kept" test -z "$(kubectl get clusterrole,clusterrolebinding,validatingwebhookconfiguration,priorityclass -o name | grep adaptdl)"
kubectl delete serviceaccount/people rolebinding/people >/dev/null 2>&1
kubectl delete namespace adaptdl --timeout=${patience}s >/dev/null 2>&1
exit $failed
