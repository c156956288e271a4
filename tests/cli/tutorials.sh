#!/usr/bin/env bash
# The tutorials' code, taken out of docs/tutorial-policy.md and docs/tutorial-backend.md as it stands, built into the
# programs with the lines that the pages tell to add, and run: the policy in the simulator, the backend under a
# scheduler with jobs.
set -u
bin=$(cd "${ADAPTDL_BIN:-build/release/bin}" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(dirname "$bin")
tmp=$(mktemp -d)
pid=
trap '[ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; rm -rf "$tmp"' EXIT
failed=0
ok() { echo "ok - $1"; }
not_ok() { echo "not ok - $1: $2"; tail -n 20 "$tmp/log" 2>/dev/null | sed 's/^/# /'; failed=1; }
flags=(-std=c11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes "-I$tmp/src" "-I$root/src" "-I$root/include")

# page_code PAGE: its C, and page_line PAGE WORD: the indented line with that word
page_code() { sed -n '/^```c$/,/^```$/p' "$root/docs/$1" | sed '1d;$d'; }
page_line() { sed -n 's/^    //p' "$root/docs/$1" | grep -m 1 -F -- "$2"; }
# The registry with the class added as the page says: register FOLDER NAME PAGE CLASS
register() {
    mkdir -p "$tmp/src/$1"
    { cat "$root/src/$1/$2.h"; page_line "$3" "extern const"; } >"$tmp/src/$1/$2.h"
    local line
    line=$(page_line "$3" "&$4")
    # before the brace that ends the list "classes"
    awk -v line="${line//&/\\\\&}" '/classes\[\] = \{/ { in_list = 1 }
        in_list && /\};/ { sub(/ *\};/, " " line "};"); in_list = 0 } { print }' "$root/src/$1/$2.c" |
        sed '/classes/s/\([a-z_]\) &/\1, \&/' >"$tmp/$2.c"
}

# ---- the policy ----
page_code tutorial-policy.md >"$tmp/equal.c"
register policy policy tutorial-policy.md adli_policy_equal
if cc "${flags[@]}" -c "$tmp/equal.c" -o "$tmp/equal.o" >"$tmp/log" 2>&1 && cc "${flags[@]}" -c "$tmp/policy.c" -o "$tmp/policy.o" >>"$tmp/log" 2>&1; then
    ok the_policy_compiles
else
    not_ok the_policy_compiles "see above"
fi
# the target is adaptdl-cli, the file bin/adaptdl
command=$(cd "$build" && ninja -t commands adaptdl-cli | grep -m 1 -- ' -o bin/adaptdl ')
(cd "$build" && eval "$(sed "s|^: && ||; s| && cd .*||; s| -o bin/adaptdl | -o $tmp/adaptdl $tmp/equal.o $tmp/policy.o |" <<<"$command")") >"$tmp/log" 2>&1
if [ -x "$tmp/adaptdl" ]; then ok and_links; else not_ok and_links "see above"; fi
"$tmp/adaptdl" sim --traces "$root/examples/traces" --policy rank,equal,fifo "$root/examples/traces/workload-small.csv" >"$tmp/log" 2>&1
rc=$?
if [ $rc -eq 0 ] && grep -q '^policy equal' "$tmp/log"; then ok the_policy_decides; else not_ok the_policy_decides "exit $rc"; fi
"$tmp/adaptdl" sim --traces "$root/examples/traces" --policy equal --set most=1 "$root/examples/traces/workload-small.csv" >"$tmp/one" 2>&1
"$tmp/adaptdl" sim --traces "$root/examples/traces" --policy equal "$root/examples/traces/workload-small.csv" >"$tmp/many" 2>&1
if grep -q "^policy equal" "$tmp/one" && ! cmp -s "$tmp/one" "$tmp/many"; then ok its_constant_counts; else not_ok its_constant_counts "most=1 changes nothing"; fi

# ---- the backend ----
page_code tutorial-backend.md >"$tmp/pretend.c"
register backend backend tutorial-backend.md adli_backend_pretend
if cc "${flags[@]}" -c "$tmp/pretend.c" -o "$tmp/pretend.o" >"$tmp/log" 2>&1 && cc "${flags[@]}" -c "$tmp/backend.c" -o "$tmp/backend.o" >>"$tmp/log" 2>&1; then
    ok the_backend_compiles
else
    not_ok the_backend_compiles "see above"
fi
# what of the conformance suite is for a backend that runs nothing
if cc "${flags[@]}" "-I$root/tests" -o "$tmp/conforms" "$root"/tests/conformance/{test_conformance_names,suite,pretend}.c \
    "$tmp/pretend.o" "$build"/src/{backend/libadl_backend,jobspec/libadl_jobspec,doc/libadl_doc,proc/libadl_proc,base/libadl_base}.a \
    -ljansson -lyaml -lm -pthread >"$tmp/log" 2>&1 && "$tmp/conforms" >"$tmp/log" 2>&1; then
    ok the_backend_passes_the_suite
else
    not_ok the_backend_passes_the_suite "see above"
fi
command=$(cd "$build" && ninja -t commands adaptdl-sched | grep -m 1 -- ' -o bin/adaptdl-sched ')
(cd "$build" && eval "$(sed "s|^: && ||; s| -o bin/adaptdl-sched | -o $tmp/adaptdl-sched $tmp/pretend.o $tmp/backend.o |" <<<"$command")") >"$tmp/log" 2>&1
if [ -x "$tmp/adaptdl-sched" ]; then ok and_links_too; else not_ok and_links_too "see above"; fi
echo 'backend: pretend' >"$tmp/sched.yaml"
cat >"$tmp/job.yaml" <<'END'
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {generateName: pretended-}
spec: {minReplicas: 2, maxReplicas: 3, template: {spec: {containers: [{name: main, command: [nothing]}]}}}
END
export ADAPTDL_STATE=$tmp/state ADAPTDL_PRETEND_S=2
"$tmp/adaptdl-sched" --config "$tmp/sched.yaml" --nodes 100 --interval 1 >"$tmp/log" 2>&1 &
pid=$!
for _ in $(seq 300); do "$bin/adaptdl" nodes >"$tmp/nodes" 2>/dev/null && break; sleep 0.1; done
if [ "$(grep -c '^node-' "$tmp/nodes")" -eq 100 ]; then ok its_nodes_are_there; else not_ok its_nodes_are_there "$(head -n 3 "$tmp/nodes")"; fi
jobs=()
for _ in 1 2 3 4 5; do jobs+=("$("$bin/adaptdl" submit "$tmp/job.yaml")"); done
if timeout 120 "$bin/adaptdl" wait "${jobs[@]}" >"$tmp/wait" 2>&1; then ok jobs_run_to_their_end; else not_ok jobs_run_to_their_end "$(cat "$tmp/wait")"; fi
kill -TERM $pid
wait $pid
pid=
exit $failed
