#!/usr/bin/env bash
# Training on a real cluster: programs that keep a ledger of what they were trained on (tests/helpers), with a shared
# volume. They grow, lose replicas and nodes, and end; every example of every epoch was applied once.
. "$(dirname "$0")/cluster.bash"
train=${ADLT_TRAIN_IMAGE:-localhost/adaptdl-train:latest}
programs=$PWD/build/release/helpers
[ -x "$programs/helper_elastic" ] || skip "build/release/helpers/helper_elastic is not built"
tools/image -o "$work/train.tar" "$train" "$programs/helper_elastic" "$programs/helper_train" >/dev/null || exit 1
load "$work/train.tar"
install "intervalSeconds: 3"

kubectl apply -f - >/dev/null <<Y
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: train}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 100Mi}}${ADLT_STORAGE_CLASS:+, storageClassName: $ADLT_STORAGE_CLASS}}
Y
training() { # NAME MIN MAX PROGRAM ARGUMENT...
    local name=$1 min=$2 max=$3 command
    shift 3
    command=$(printf ', %s' "$@")
    cat <<J
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {name: "$name", labels: {adaptdl/application: "$name-$$"}} # what others measured is not its own
spec:
  minReplicas: $min
  maxReplicas: $max
  template:
    spec:
      terminationGracePeriodSeconds: 60
      containers:
      - name: main
        image: $train
        command: [${command#, }]
        imagePullPolicy: IfNotPresent
        resources: {requests: {cpu: ${cpu:-1200m}, memory: 32Mi}}
        env:
        - {name: ADAPTDL_SHARE_PATH, value: /share}
        - {name: ADAPTDL_CHECKPOINT_PATH, value: /checkpoint}
        volumeMounts:
        - {name: data, mountPath: /share, subPath: $name-$$-share}
        - {name: data, mountPath: /checkpoint, subPath: $name-$$-checkpoint}
      volumes:
      - {name: data, persistentVolumeClaim: {claimName: train}}
J
}
exact() { # NAME: all counts of the ledger are 1
    on_volume train "cat /data/$1-$$-share/ledger" >"$work/ledger" || { echo "no ledger"; return 1; }
    head -n 1 "$work/ledger"
    [ "$(tail -n +2 "$work/ledger" | tr ' ' '\n' | grep -c .)" -gt 0 ] &&
        [ -z "$(tail -n +2 "$work/ledger" | tr ' ' '\n' | grep . | grep -vx 1)" ]
}
nodes_in_use() { kubectl get adljob "$1" -o 'jsonpath={range .status.allocation[*]}{@}{"\n"}{end}' | sort -u | grep -c .; }
on_nodes() { is "$1" phase Running && [ "$(nodes_in_use "$1")" = "$2" ]; }
resized() { status "$1" scheduler.resized | grep -q "$2"; }

### in place: it grows, a replica is taken away, the operator goes

has() { is "$1" phase Running && is "$1" readyReplicas "$2"; }
cpu=800m training elastic 1 2 helper_elastic epochs=4 examples=2000 batch=8 example_us=20000 | kubectl apply -f - >/dev/null
check "it trains" within $patience is elastic phase Running
check "it grows" within $patience has elastic 2
check "in place" within $patience resized elastic "in place"
gone=$(kubectl get pods -l adaptdl/job=elastic --field-selector=status.phase=Running -o 'jsonpath={.items[0].metadata.name}')
kubectl delete pod "$gone" --grace-period=0 --force --wait=false >/dev/null 2>&1
replaced() { has elastic 2 && ! kubectl get pods -l adaptdl/job=elastic --field-selector=status.phase=Running -o name | grep -qx "pod/$gone"; }
check "one that is taken away is replaced" within $patience replaced
kubectl -n adaptdl delete pod -l app=adaptdl-sched --grace-period=0 --force >/dev/null 2>&1
kubectl -n adaptdl rollout status deployment/adaptdl-sched --timeout=${patience}s >/dev/null
check "the job ends under another operator" within 900 is elastic phase Succeeded
echo "info - $(status elastic scheduler.resized); started $(status elastic group) times"
check "every example of every epoch was applied once" exact elastic
echo "info - $(head -n 1 "$work/ledger")"

### on two nodes: one is taken away and comes back

cpu=1200m training spread 2 2 helper_train epochs=2 examples=800 batch=4 example_us=30000 | kubectl apply -f - >/dev/null
check "two replicas train on two nodes" within $patience on_nodes spread 2
node=$(node_of spread 1)
kubectl cordon "$node" >/dev/null
check "without one of them it waits" within $patience is spread phase Pending
kubectl uncordon "$node" >/dev/null
check "with both it goes on" within $patience on_nodes spread 2
check "to the end" within 900 is spread phase Succeeded
check "its ledger is exact" exact spread
echo "info - $(head -n 1 "$work/ledger"); started $(status spread group) times"
uninstall
kubectl delete pvc train --wait=false >/dev/null
exit $failed
