#!/usr/bin/env bash
# What goes wrong in a cluster: the API server restarts, a kubelet dies, a node is deleted, a volume never comes. Nothing
# is lost, nothing runs twice, and people see why. Only on a cluster of ours: its daemons are killed here.
. "$(dirname "$0")/cluster.bash"
[ $ours = 1 ] || skip "daemons of somebody else's cluster are not to be killed"
install "intervalSeconds: 3"
# With -k a silent node would count as ready for minutes.
running=$K8S_DIR/run
again() { "$kit/up" -n 2 >"$work/up.log" 2>&1 || { echo "up: $(tail -n 1 "$work/up.log")"; return 1; }; }
end() { # DAEMON: SIGKILL
    local id
    id=$(cat "$running/$1.pid")
    kill -KILL "$id" && while kill -0 "$id" 2>/dev/null; do sleep 0.1; done
}

### the API server

job calm 2 2 "$wait_script" | kubectl apply -f - >/dev/null
check "a job runs" within $patience is calm phase Running
before=$(pods calm)
end kube-apiserver
check "the API server comes back" again
job late 1 1 "$wait_script" >"$work/late.yaml"
check "it takes jobs again" within $patience kubectl apply -f "$work/late.yaml"
check "and the operator runs them" within $patience is late phase Running
check "the first has the replicas that it had" test "$before" = "$(pods calm)"
check "the first is let go" within 60 let_go calm
check "so is the other" within 60 let_go late
check "both succeed" within $patience sh -c '[ "$(kubectl get adljob calm late -o jsonpath="{.items[*].status.phase}")" = "Succeeded Succeeded" ]'
check "started once" is calm group 1

### a volume that never comes

kubectl apply -f - >/dev/null <<Y
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: never}
spec: {accessModes: [ReadWriteMany], storageClassName: there-is-none, resources: {requests: {storage: 1Mi}}}
Y
job volume 1 1 true | sed 's#^      containers:#      volumes: [{name: v, persistentVolumeClaim: {claimName: never}}]\n      containers:#' | kubectl apply -f - >/dev/null
check "a claim that stays pending is told" within $patience says volume message "unbound immediate PersistentVolumeClaims"
kubectl delete adljob/volume pvc/never --wait=false >/dev/null

### a node

job moves 1 1 "$wait_script" | kubectl apply -f - >/dev/null
check "a job runs on a node" within $patience is moves phase Running
node=$(node_of moves)
case $(kubectl -n adaptdl get pods -l app=adaptdl-sched -o 'jsonpath={.items[0].spec.nodeName}') in
"$node") # the operator must live
    kubectl cordon "$node" >/dev/null
    check "it moves away from the operator's node" within $patience sh -c "[ \"\$(kubectl get adljob moves -o 'jsonpath={.status.phase} {.status.allocation[0]}')\" != 'Running $node' ] && kubectl get adljob moves -o 'jsonpath={.status.phase}' | grep -q Running"
    kubectl uncordon "$node" >/dev/null
    node=$(node_of moves) ;;
esac
elsewhere() { is moves phase Running && [ "$(node_of moves)" != "$node" ]; }
group=$(status moves group)
end "kubelet${node#node}"
check "when its kubelet is dead it runs elsewhere" within $patience elsewhere
check "its events say why" within $patience sh -c 'kubectl describe adljob moves | grep -q "NodeLost.*node .* is lost"'
check "that is no failure of its own" is moves scheduler.failures 0
check "the kubelet comes back" again
check "what it had run is gone" within $patience sh -c '[ "$(kubectl get pods -l adaptdl/job=moves --field-selector=status.phase=Running -o name | wc -l)" = 1 ]'
node=$(node_of moves)
other=$([ "$node" = node1 ] && echo node2 || echo node1)
check "both nodes are ready" kubectl wait --for=condition=Ready "node/$other" --timeout=${patience}s
kubectl delete node "$node" --wait=false >/dev/null
check "when its node is deleted it runs elsewhere" within $patience elsewhere
end "kubelet${node#node}"
check "the node comes back" again # the kubelet makes its object anew when it starts
check "and is ready" within $patience sh -c "kubectl wait --for=condition=Ready node/$node --timeout=10s"
check "it is let go" within 60 let_go moves
check "the job succeeds" within $patience is moves phase Succeeded
check "after as many starts as there were losses" test "$(status moves group)" -ge $((group + 2))
uninstall
exit $failed
