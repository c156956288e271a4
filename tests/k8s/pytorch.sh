#!/usr/bin/env bash
# The tutorials on a real cluster: examples/mnist in C, and in PyTorch with an image that tools/image makes of Debian's
# packages. They start on one node, grow to two and shrink again, in place, and run to the end; a program whose model is
# its ledger does the same. Then the original package's client, which knows no tokens, on this operator.
. "$(dirname "$0")/cluster.bash"
patience=900 # PyTorch starts slowly on a busy machine
torch=${ADLT_TORCH_IMAGE:-localhost/adaptdl-torch:latest}
examples=$PWD/build/release/examples
[ -x "$examples/mnist" ] && [ -x "$examples/make_digits" ] || skip "build/release/examples is not built"
if [ -z "${ADLT_TORCH_IMAGE:-}" ]; then
    dpkg-query -W python3-torch >/dev/null 2>&1 || skip "Debian's python3-torch is not installed"
    tools/build-python >/dev/null || exit 1
    original=build/image/original # with what it needs that Debian's PyTorch does not bring, and a NumPy that still has np.int
    [ -e $original/ready ] || { rm -rf $original && python3 -m pip install -q --no-deps --target $original adaptdl==0.2.11 \
        torchtext==0.6.0 sentencepiece autograd portpicker 'semver<3' tqdm six 'scipy<1.12' 'numpy<1.24' >"$work/pip.log" 2>&1 && touch $original/ready; } ||
        { rm -rf $original && mkdir -p $original; }
    mkdir "$work/digits" && "$examples/make_digits" "$work/digits" 1500 200 >/dev/null || exit 1
    tools/image -o "$work/torch.tar" "$torch" -d python3-torch -c build/python/lib:/opt/adaptdl -c $original:/opt/original \
        -c examples/pytorch:/examples -c tests/python/elastic_program.py:/examples/elastic_program.py \
        -c "$work/digits:/digits" "$examples/mnist" >/dev/null || exit 1
    load "$work/torch.tar"
    rm -f "$work/torch.tar"
fi
nodes=($(kubectl get nodes -l type!=kwok -o 'jsonpath={.items[*].metadata.name}'))
[ ${#nodes[@]} -ge 2 ] || skip "two nodes are needed"
# One replica has more than half of a node's memory, and a part of a processor, so that two are quicker than one.
memory=$(kubectl get nodes -l type!=kwok -o 'jsonpath={range .items[*]}{.status.allocatable.memory}{"\n"}{end}' | tr -d Ki | sort -n | head -n 1)
memory=$((memory * 6 / 10))Ki

kubectl apply -f - >/dev/null <<Y
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: torch}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 100Mi}}${ADLT_STORAGE_CLASS:+, storageClassName: $ADLT_STORAGE_CLASS}}
Y
training() { # NAME MIN MAX LIBRARY COMMAND-AS-JSON
    cat <<J
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {name: "$1", labels: {adaptdl/application: "$1-$$"}}
spec:
  minReplicas: $2
  maxReplicas: $3
  template:
    spec:
      terminationGracePeriodSeconds: 60
      containers:
      - name: main
        image: $torch
        command: $5
        workingDir: /examples
        imagePullPolicy: IfNotPresent
        resources: {requests: {cpu: 400m, memory: $memory}, limits: {cpu: 400m}}
        env:
        - {name: PYTHONPATH, value: "$4"}
        - {name: OMP_NUM_THREADS, value: "1"}
        - {name: ADAPTDL_HINTS_INTERVAL, value: "1"}
        - {name: ADAPTDL_SHARE_PATH, value: /share}
        - {name: ADAPTDL_CHECKPOINT_PATH, value: /checkpoint}
        volumeMounts:
        - {name: data, mountPath: /share, subPath: $1-$$-share}
        - {name: data, mountPath: /checkpoint, subPath: $1-$$-checkpoint}
      volumes:
      - {name: data, persistentVolumeClaim: {claimName: torch}}
J
}
on_nodes() { is "$1" phase Running && is "$1" readyReplicas "$2" && [ "$(kubectl get adljob "$1" -o 'jsonpath={range .status.allocation[*]}{@}{"\n"}{end}' | sort -u | grep -c .)" = "$2" ]; }
resized() { status "$1" scheduler.resized | grep -q "$2"; }
ended() { kubectl logs -l "adaptdl/job=$1" -c main --tail=-1 2>/dev/null >"$work/$1.log"; grep -q "$2" "$work/$1.log"; }
# from one node to two and back, in place
grows_and_shrinks() { # JOB
    check "$1: it trains on one node" within $patience on_nodes "$1" 1
    kubectl uncordon "${nodes[1]}" >/dev/null
    check "$1: with another node it grows" within $patience on_nodes "$1" 2
    check "$1: in place" resized "$1" "in place"
    kubectl cordon "${nodes[1]}" >/dev/null
    check "$1: without it it shrinks" within $patience on_nodes "$1" 1
    check "$1: in place, too" is "$1" group 1
}

install "intervalSeconds: 3" "tokens: false"

### the ledger, in PyTorch

kubectl cordon "${nodes[1]}" >/dev/null
training ledger 1 2 /opt/adaptdl '[python3, elastic_program.py, /share, epochs=4, examples=1200, step_ms=400]' | kubectl apply -f - >/dev/null
grows_and_shrinks ledger
on_volume torch "touch /data/ledger-$$-share/hurry"
check "ledger: it runs to the end" within 900 is ledger phase Succeeded
check "ledger: every example of every epoch was applied once" sh -c 'grep -q "\"wrong\": \[\], \"steps\": 400," "$1"' _ <(on_volume torch "cat /data/ledger-$$-share/result")

### the tutorials

training tutorial 1 2 /opt/adaptdl '[python3, mnist_step_5.py, --data, /digits, --epochs, "4", --lr, "0.5"]' | kubectl apply -f - >/dev/null
grows_and_shrinks tutorial
check "tutorial: it runs to the end" within 900 is tutorial phase Succeeded
check "tutorial: every test image was counted once in the last epoch" ended tutorial "Accuracy: .*/200 "
kubectl delete adljob tutorial ledger --wait=false >/dev/null
training mnist 1 2 "" '[mnist, --epochs, "10", --examples, "20000", --threads, "1"]' | kubectl apply -f - >/dev/null
grows_and_shrinks mnist
check "mnist: it runs to the end" within 900 is mnist phase Succeeded
check "mnist: every test image was counted once in the last epoch" ended mnist "Accuracy: .*/3334 "
kubectl uncordon "${nodes[1]}" >/dev/null

### the original's client

if [ -e build/image/original/ready ] || [ -n "${ADLT_TORCH_IMAGE:-}" ]; then
    training original 2 2 /opt/original '[python3, mnist_step_5.py, --data, /digits, --epochs, "6", --workers, "0"]' | kubectl apply -f - >/dev/null
    check "original: it runs on two nodes" within $patience on_nodes original 2
    check "original: no token is in what they were told" sh -c 'kubectl get secrets -l adaptdl=true -o "go-template={{range .items}}{{range .data}}{{. | base64decode}} {{end}}{{end}}" | grep -q " http://adaptdl-supervisor"'
    check "original: its hints arrive" within $patience sh -c 'kubectl get adljob original -o "jsonpath={.status.scheduler.report.perfParams}" | grep -q alpha'
    check "original: it runs to the end" within 900 is original phase Succeeded
    ended original .
    check "original: its replicas found each other" test "$(grep -c "torch.distributed initialized" "$work/original.log")" = 2
else
    echo "skip - original: the package cannot be had: $(tail -n 1 "$work/pip.log" 2>/dev/null)"
fi
uninstall
kubectl delete pvc torch --wait=false >/dev/null
exit $failed
