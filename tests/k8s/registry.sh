#!/usr/bin/env bash
# The registry of the chart: never open, pushed to through the API server with a real builder (buildah), pulled from by the
# nodes, its password kept by upgrades and turned over when it is asked for.
. "$(dirname "$0")/cluster.bash"
. "$(dirname "$0")/people.bash"
command -v buildah >/dev/null && [ -x /usr/bin/docker-registry ] || skip "no buildah or no docker-registry: tools/setup registry installs them"
[ $ours = 1 ] || skip "needs a cluster that images can be loaded into"
tools/image -o build/image/adaptdl-registry.tar localhost/adaptdl-registry:latest /usr/bin/docker-registry >/dev/null
load build/image/adaptdl-registry.tar
mkdir "$work/bin" "$work/job"
cat >"$work/bin/build" <<S
#!/bin/sh
STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot exec buildah --root $work/images --runroot $work/run "\$@"
S
chmod +x "$work/bin/build"
"$work/bin/build" pull -q "docker-archive:$K8S_DIR/bin/busybox.tar" >"$work/log" 2>&1 || skip "buildah does not run here: $(tail -n 1 "$work/log")"
export ADAPTDL_BUILDER=$work/bin/build
unset ADAPTDL_SUBMIT_REPO
with="--set docker-registry.enabled=true --set docker-registry.storage.size=" # volumes of these clusters belong to root

printf 'FROM k8s.local/busybox:1\nCOPY hello.sh /root/hello.sh\n' >"$work/job/Dockerfile"
echo 'echo "Hello from an image that was pushed"; printf done >"$ADAPTDL_SHARE_PATH/foo.txt"' >"$work/job/hello.sh"
job built 1 1 x | sed 's#command: .*#command: [/bin/sh, /root/hello.sh]#' >"$work/job/adaptdljob.yaml"

check "the chart is installed without a registry" release install --create-namespace
check "then an image has nowhere to go" fails 2 "no registry in the cluster" "$adaptdl" submit "$work/job"
check "a password that is too short is refused" fails 1 password helm template a charts/adaptdl-sched --kube-version 1.31.0 \
    --set docker-registry.enabled=true --set docker-registry.password=secret
check "an upgrade brings one" release upgrade $with
[ $failed = 0 ] || { kubectl -n adaptdl get pods; kubectl -n adaptdl logs adaptdl-registry-0 --tail=5; exit 1; }
password() { kubectl -n adaptdl get secret adaptdl-registry -o 'go-template={{.data.password | base64decode}}'; }
asks() { curl -s -m 30 -o /dev/null -w '%{http_code}' "$@" "http://$(kubectl -n adaptdl get service adaptdl-registry -o 'jsonpath={.spec.clusterIP}'):5000/v2/_catalog"; }
check "nobody looks into it without its password" test "$(asks)" = 401
check "with it one does" test "$(asks -u "adaptdl:$(password)")" = 200

check "an image is built and pushed" said built "$adaptdl" submit --checkpoint-storage-size 16Mi "$work/job"
pinned() { kubectl get adljob built -o 'jsonpath={.spec.template.spec.containers[0].image}' | grep -qx "localhost:32000/adaptdl-submit@sha256:[0-9a-f]\{64\}"; }
check "by its digest" pinned
check "nodes pull it, and it ends well" "$adaptdl" wait --timeout $patience built
check "its output" said "Hello from an image that was pushed" "$adaptdl" logs --no-follow built
check "its file" said done "$adaptdl" cp built:/adaptdl/share/foo.txt -
### hello_world as the tutorial has it

# What it is built from: Debian's Python by that name, and a wheel of ours for pip.
tools/build-python >/dev/null && /usr/bin/python3 -W ignore setup.py -q build --build-base build/python/tmp --build-lib build/python/lib \
    --build-temp build/python/tmp bdist_wheel --skip-build --dist-dir "$work/wheels" >"$work/log" 2>&1 &&
    tools/image -o "$work/python.tar" docker.io/library/python:3.7-slim -d dash -d coreutils -d tar -d python3-pip -c "$work/wheels:/wheels" \
        -e PIP_NO_INDEX=1 -e PIP_FIND_LINKS=/wheels -e PIP_BREAK_SYSTEM_PACKAGES=1 >/dev/null &&
    "$work/bin/build" pull -q "docker-archive:$work/python.tar" >"$work/log" 2>&1 || { echo "not ok - python: $(tail -n 1 "$work/log")"; exit 1; }
check "hello_world is submitted, unchanged" sh -c "$adaptdl submit examples/hello_world >$work/name"
hello=$(cat "$work/name")
check "it runs" "$adaptdl" wait --for Running --timeout $patience "$hello"
check "it says hello" within $patience said "Hello, world!" "$adaptdl" logs --no-follow "$hello"
check "its file is copied" sh -c "$adaptdl cp $hello:/adaptdl/share/foo.txt $work/foo.txt && [ \"\$(cat $work/foo.txt)\" = 'Hello, world!' ]"
check "it ends well" "$adaptdl" wait --timeout $patience "$hello"
"$adaptdl" delete "$hello" >/dev/null

check "no port stays open" fails 1 "" sh -c 'ps -eo args | grep "[p]ort-forward pod/adaptdl-registry-0"'
old=$(password)
check "an upgrade keeps its password" release upgrade $with
check "which is the same" test "$old" = "$(password)"

### who may push

people_may() { kubectl auth can-i "$@" --as=system:serviceaccount:default:people -n adaptdl | grep -qx yes; }
kubectl create serviceaccount people >/dev/null
check "users of the chart may" release upgrade $with \
    --set 'users[0].kind=ServiceAccount' --set 'users[0].name=people' --set 'users[0].namespace=default'
check "read its password" people_may get secret/adaptdl-registry
check "and lead a port to it" people_may create pods/adaptdl-registry-0 --subresource=portforward
check "but not to others" fails 1 "" people_may create pods/other --subresource=portforward

### another password

kubectl -n adaptdl delete secret adaptdl-registry >/dev/null
check "without the Secret an upgrade makes another" release upgrade $with
check "which is another" test "$old" != "$(password)"
check "by which one pushes" "$adaptdl" submit --no-storage -n again "$work/job"
check "and nodes pull" sh -c "$adaptdl wait --timeout $patience again; $adaptdl logs --no-follow again | grep Hello"
"$adaptdl" delete --wait built again >/dev/null 2>&1
helm uninstall adaptdl -n adaptdl --wait --timeout ${patience}s >/dev/null 2>&1
kubectl delete serviceaccount/people secret/adaptdl-registry >/dev/null 2>&1
kubectl delete namespace adaptdl --timeout=${patience}s >/dev/null 2>&1
exit $failed
