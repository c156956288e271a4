#!/usr/bin/env bash
# The documentation's hello-world job, unchanged, in Python and in C: submit, ls, logs, cp, delete.
. "$(dirname "$0")/cluster.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
cluster_start --nodes 1 --slots 2
cp -r "$root/examples/hello_world" "$tmp/hello_world"
cp "$bin/../examples/hello_world" "$tmp/hello_world/hello_world" || exit 1

# say_hello WHAT NAME: the rest of the story of the job that was just submitted
say_hello() {
    local what=$1 job
    job=$(cat "$tmp/out")
    call wait --for Running --timeout 50 "$job"
    check "${what}_runs" 0
    call ls
    expect "${what}_is_listed" 0 <<EOF
Name                                                             Status     Start(UTC)    Runtime  Rplc  Rtrt
$(printf '%-65s' "$job" | mask)Running    Mon-00 00:00  0 min    1     0
EOF
    says_hello() { call logs --no-follow "$job"; grep -qx 'Hello, world!' "$tmp/out"; }
    eventually says_hello && ok "${what}_says_hello" || not_ok "${what}_says_hello" "it does not"
    has_file() { call cp "$job:/adaptdl/share/foo.txt" "$tmp/foo.txt"; [ $rc -eq 0 ] && [ "$(cat "$tmp/foo.txt")" = 'Hello, world!' ]; }
    eventually has_file && ok "${what}_leaves_its_file" || not_ok "${what}_leaves_its_file" "no foo.txt"
    call delete --wait "$job"
    expect "${what}_is_deleted" 0 <<<"default/$2-XXXXX deleted"
    call ls
    [ "$(wc -l <"$tmp/out")" -eq 1 ] && ok "${what}_is_gone" || not_ok "${what}_is_gone" "still listed"
}

call submit "$tmp/hello_world" -f "$tmp/hello_world/native.yaml" -d Dockerfile.native
expect native_is_submitted 0 <<'EOF'
hello-native-XXXXX
adaptdl submit: note: TMP/hello_world/Dockerfile.native: FROM ignored: a local cluster uses what is installed on this machine
EOF
say_hello native hello-native

# The job file says python3: the package must be one that this python3 can import.
library=${ADL_PYTHON_LIB:-$root/build/python/lib}
if ! (cd / && PYTHONPATH=$library python3 -c 'import adaptdl.env') 2>/dev/null; then
    echo "skip - python_hello_world: python3 cannot import adaptdl.env (ADL_PYTHON_LIB names its directory)"
else
    cluster_stop
    PYTHONPATH=$library cluster_start --nodes 1 --slots 2
    call submit "$tmp/hello_world"
    expect python_is_submitted 0 <<'EOF'
hello-world-XXXXX
adaptdl submit: note: TMP/hello_world/Dockerfile: FROM, RUN ignored: a local cluster uses what is installed on this machine
EOF
    say_hello python hello-world
fi
finish
