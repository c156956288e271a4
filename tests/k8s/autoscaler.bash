# As much of a cloud's autoscaler as the tests need, for nodes that kwok pretends: autoscale SECONDS... adds a node for
# each placeholder that finds none, and takes away nodes on which neither a placeholder nor a replica is.
# shellcheck shell=bash
cloud_nodes() { kubectl get nodes -l pool=cloud -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}'; }
add_node() { # NAME: with a price, as a spot node
    kubectl apply -f - >/dev/null <<Y
apiVersion: v1
kind: Node
metadata:
  name: $1
  annotations: {kwok.x-k8s.io/node: fake}
  labels: {pool: cloud, kubernetes.io/hostname: $1, kubernetes.io/os: linux, adaptdl/price-per-hour: "2",
    eks.amazonaws.com/capacityType: SPOT}
spec: {taints: [{key: petuum.com/nodegroup, value: adaptdl, effect: NoSchedule}]}
status:
  capacity: {cpu: "4", memory: 16Gi, pods: "110"}
  allocatable: {cpu: "4", memory: 16Gi, pods: "110"}
Y
}
autoscale_once() {
    local waiting used name
    waiting=$(kubectl -n adaptdl get pods -l adaptdl/placeholder --field-selector=status.phase=Pending \
        -o 'jsonpath={range .items[?(@.status.conditions[*].reason=="Unschedulable")]}{.metadata.name}{"\n"}{end}')
    for _ in $waiting; do
        number=$((number + 1))
        add_node "cloud-$number"
    done
    used=$(kubectl get pods -A -l 'adaptdl in (true)' -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}'
        kubectl -n adaptdl get pods -l adaptdl/placeholder -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}')
    [ -n "$waiting" ] || for name in $(cloud_nodes); do
        grep -qx "$name" <<<"$used" || kubectl delete node "$name" --wait=false >/dev/null
    done
}
number=0
autoscaler() {
    trap 'exit 0' TERM
    while :; do
        autoscale_once 2>/dev/null
        sleep 2
    done
}
