#!/usr/bin/env bash
# `adaptdl model` and the program around it: answers, errors, exit codes, conversations through a pipe.
set -u
adaptdl=${ADAPTDL_BIN:-build/release/bin}/adaptdl
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0

# check NAME WANTED-EXIT WANTED-STDOUT [WANTED-STDERR-PART]: against the last call's rc, $tmp/out, $tmp/err
check() {
    local out err
    out=$(cat "$tmp/out") err=$(cat "$tmp/err")
    if [ "$rc" -ne "$2" ]; then
        echo "not ok - $1: exit $rc, wanted $2 (stderr: $err)"; failed=1
    elif [ "$out" != "$3" ]; then
        echo "not ok - $1: printed \"$out\", wanted \"$3\""; failed=1
    elif [ -n "${4:-}" ] && [[ "$err" != *"$4"* ]]; then
        echo "not ok - $1: stderr \"$err\" lacks \"$4\""; failed=1
    elif [ -z "${4:-}" ] && [ -n "$err" ]; then
        echo "not ok - $1: unexpected stderr \"$err\""; failed=1
    elif [ "$(wc -l <"$tmp/err")" -gt 1 ]; then
        echo "not ok - $1: more than one line on stderr"; failed=1
    else
        echo "ok - $1"
    fi
}
call() { "$adaptdl" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; rc=$?; }
feed() { # verb: standard input is the questions
    "$adaptdl" model "$1" >"$tmp/out" 2>"$tmp/err"; rc=$?
}
model='"perf": [0.1, 0.01, 0.2, 0.02, 0.05, 0.01, 1.5], "grad": [0.01, 0.5], "init": 128'

# ---- answers ----
feed evaluate <<<"{$model, \"N\": 1, \"R\": 4, \"m\": 64, \"s\": 0}"
check evaluate 0 '{"throughput": 339.3946218170772, "efficiency": 0.9807692307692307, "goodput": 332.8678021667488}'
feed optimize <<<"{$model, \"N\": 1, \"R\": 4, \"max_batch_size\": 4096, \"max_m\": 512}"
check optimize 0 '{"goodput": 347.82930416363547, "m": 132, "s": 0}'
feed optimize <<<"{$model, \"N\": 1, \"R\": 1, \"max_batch_size\": null, \"min_m\": null, \"max_m\": null, \"accumulation\": null, \"other\": [1]}"
check optimize_open_bounds_and_unknown_fields 0 '{"goodput": 92.75362318836764, "m": 128, "s": 0}'
feed speedup <<<"{$model, \"N\": 1, \"R\": 1, \"max_batch_size\": 4096}
{$model, \"R\": 0}
{\"perf\": null, \"N\": 2, \"R\": 7}"
check speedup_of_one_none_and_unknown 0 '{"speedup": 1}
{"speedup": 0}
{"speedup": 7}'
feed optimize <<<"{$model, \"N\": 1, \"R\": 1, \"max_batch_size\": 4096, \"lone_grows\": true}"
check optimize_one_replica_that_grows 0 '{"goodput": 94.38772105437351, "m": 260, "s": 0}'
feed fit <<<'{"N": [1, 1, 1], "R": [1, 1, 0], "m": [50, 100, 100], "accum_time": [0.15, 0.25, 1], "optim_time": [0.15, 0.25, 1]}'
tr -d '[]{}:,"' <"$tmp/out" |
    awk '{ ok = NF == 14 && ($2 - 0.05)^2 < 1e-12 && ($3 - 0.002)^2 < 1e-16 && $12 == 2 && $14 == 1 } END { exit !ok }' &&
    echo "ok - fit_finds_0.05_and_0.002" || { echo "not ok - fit_finds_0.05_and_0.002: $(cat "$tmp/out")"; failed=1; }

# ---- bad lines ----
feed evaluate <<EOF

not json
[1, 2]
{"grad": [1, 2]}
{"perf": [1, 2], "grad": [1, 2], "init": 1}
{"perf": "x", "grad": [1, 2], "init": 1}
{"perf": [1, 1, 1, 1, 1, 1, "a"], "grad": [1, 2], "init": 1}
{"perf": [1, 1, 1, 1, 1, 1, NaN], "grad": [1, 2], "init": 1}
{"perf": [1, 1, 1, 1, 1, 1, 11], "grad": [1, 2], "init": 1}
{$model, "N": 2, "R": 1, "m": 64, "s": 0}
{$model, "N": 0, "R": 1, "m": 64, "s": 0}
{$model, "N": 1.5, "R": 2, "m": 64, "s": 0}
{$model, "N": 1, "R": 1, "m": 64, "s": -1}
{$model, "N": 1, "R": 1, "m": 0, "s": 0}
{$model, "N": 1, "R": 1, "m": 64, "s": 0}
   
{$model, "N": 1, "R": 1, "m": 128, "s": 0}
EOF
check bad_lines_are_answered_in_place 1 '{"error": "line 2: not JSON (column 3): '"'[' or '{' expected near 'not'"'"}
{"error": "line 3: expected a JSON object"}
{"error": "line 4: field \"perf\" is missing"}
{"error": "line 5: field \"perf\" must have 7 numbers, not 2"}
{"error": "line 6: field \"perf\" must be an array, not a string"}
{"error": "line 7: field \"perf\" must be a number, not a string"}
{"error": "line 8: not JSON (column 31): invalid token near '"'NaN'"'"}
{"error": "line 9: gamma must be from 1 to 10, not 11"}
{"error": "line 10: field \"R\" must be at least N: R = 1, N = 2"}
{"error": "line 11: field \"N\" must be a whole number from 1 to 2147483647, not 0"}
{"error": "line 12: field \"N\" must be a whole number from 1 to 2147483647, not 1.5"}
{"error": "line 13: field \"s\" must be a whole number from 0 to 2147483647, not -1"}
{"error": "line 14: m must be from 1 to 2147483647, not 0"}
{"error": "line 15: batch size 64 must be at least the initial batch size 128"}
{"throughput": 92.75362318836764, "efficiency": 1, "goodput": 92.75362318836764}'
feed optimize <<EOF
{$model, "N": 1, "R": 1, "max_batch_size": 64}
{$model, "N": 1, "R": 1, "max_batch_size": "a"}
{$model, "N": 1, "R": 1, "max_batch_size": 512, "min_m": 9, "max_m": 8}
{$model, "N": 1, "R": 1, "min_m": 0}
{$model, "N": 1, "R": 1, "accumulation": 1}
{$model, "N": 1, "R": 1, "lone_grows": "yes"}
{$model, "N": 1, "R": 1, "max_m": 100}
EOF
check bad_bounds 1 '{"error": "line 1: init batch size 128 is more than max_batch_size 64"}
{"error": "line 2: field \"max_batch_size\" must be a number, not a string"}
{"error": "line 3: no whole local batch size from 9 to 8"}
{"error": "line 4: field \"min_m\" must be at least 1, not 0"}
{"error": "line 5: field \"accumulation\" must be true or false, not a number"}
{"error": "line 6: field \"lone_grows\" must be true or false, not a string"}
{"error": "line 7: 1 replica of at most 100 examples cannot hold the initial batch of 128 without accumulation"}'
feed fit <<'EOF'
{"N": [], "R": [], "m": [], "accum_time": [], "optim_time": []}
{"N": [1], "R": [1, 2], "m": [1], "accum_time": [1], "optim_time": [1]}
{"N": [1.5], "R": [1], "m": [1], "accum_time": [1], "optim_time": [1]}
{"N": [1], "R": [1], "m": [1], "accum_time": [1], "optim_time": [null]}
{"N": [2], "R": [1], "m": [1], "accum_time": [1], "optim_time": [1]}
{"N": [1], "R": [1], "m": [1], "accum_time": [0], "optim_time": [1e300]}
{"N": [1], "R": [1], "m": [1], "accum_time": [1]}
{"N": 1}
EOF
check bad_points 1 '{"error": "line 1: field \"N\" is empty: a fit needs at least one point"}
{"error": "line 2: field \"R\" has 2 elements, but \"N\" has 1"}
{"error": "line 3: field \"N[0]\" must be a whole number, not 1.5"}
{"error": "line 4: field \"optim_time[0]\" must be a number, not null"}
{"error": "line 5: no usable point among 1"}
{"error": "line 6: no usable point among 1"}
{"error": "line 7: field \"optim_time\" is missing"}
{"error": "line 8: field \"N\" must be an array, not a number"}'
feed speedup <<<"{$model, \"N\": 1, \"R\": -1}"
check bad_replicas 1 '{"error": "line 1: field \"R\" must be a whole number from 0 to 1048576, not -1"}'
printf '{"a":\0}\n\xff\xfe\n' | feed evaluate
[ "$rc" -eq 1 ] && [ "$(grep -c '^{"error": "line [12]: not JSON' "$tmp/out")" -eq 2 ] &&
    echo "ok - bytes_that_are_no_text" || { echo "not ok - bytes_that_are_no_text: $(cat "$tmp/out")"; failed=1; }

# ---- files and sizes ----
: >"$tmp/empty"
call model fit "$tmp/empty"
check an_empty_file_has_no_answers 0 ''
call model fit "$tmp/none"
check a_missing_file 2 '' "$tmp/none: No such file"
call model fit "$tmp"
check a_folder_is_no_file 2 '' "$tmp: Is a directory"
printf '%s' "{$model, \"N\": 1, \"R\": 1, \"m\": 128, \"s\": 0}" >"$tmp/unfinished"
call model evaluate "$tmp/unfinished"
check a_last_line_without_newline 0 '{"throughput": 92.75362318836764, "efficiency": 1, "goodput": 92.75362318836764}'
{ head -c 17000000 /dev/zero | tr '\0' ' '; echo; echo '{}'; } >"$tmp/long"
call model evaluate "$tmp/long"
check a_line_beyond_16_MiB 1 '{"error": "line 1: longer than 16 MiB"}
{"error": "line 2: field \"perf\" is missing"}'
yes "{$model, \"N\": 1, \"R\": 4, \"m\": 64, \"s\": 0}" | head -n 100000 >"$tmp/many"
call model evaluate "$tmp/many"
lines=$(wc -l <"$tmp/out") distinct=$(sort -u "$tmp/out" | wc -l)
[ "$rc" -eq 0 ] && [ "$lines" -eq 100000 ] && [ "$distinct" -eq 1 ] && echo "ok - a_hundred_thousand_lines" ||
    { echo "not ok - a_hundred_thousand_lines: rc $rc, $lines lines, $distinct distinct"; failed=1; }
"$adaptdl" model evaluate "$tmp/many" >/dev/full 2>"$tmp/err"; rc=$?
: >"$tmp/out"
check a_full_disk_is_reported 2 '' 'cannot write'

# ---- a conversation: the second question is only asked once the first was answered ----
coproc TALK { "$adaptdl" model speedup; }
answers=
for r in 2 3; do
    echo "{\"perf\": null, \"N\": 1, \"R\": $r}" >&"${TALK[1]}"
    read -r -t 20 line <&"${TALK[0]}" && answers+=$line
done
exec {TALK[1]}>&-
wait
[ "$answers" = '{"speedup": 2}{"speedup": 3}' ] && echo "ok - a_conversation_through_pipes" ||
    { echo "not ok - a_conversation_through_pipes: got \"$answers\""; failed=1; }

# ---- help and mistakes ----
for verb in evaluate optimize fit speedup plot; do
    call help model $verb
    (cd "$tmp" && PATH=$(cd "$OLDPWD" && cd "$(dirname "$adaptdl")" && pwd):$PATH \
        bash -c "$(sed -n '/^Example:/,$p' "$tmp/out" | tail -n +2)" >"$tmp/example" 2>&1)
    [ $? -eq 0 ] && ! grep -q error "$tmp/example" && echo "ok - the_example_of_${verb}_works" ||
        { echo "not ok - the_example_of_${verb}_works: $(head -c 300 "$tmp/example")"; failed=1; }
done
grep -q '</svg>' "$tmp/goodput.svg" && echo "ok - the_example_of_plot_draws" ||
    { echo "not ok - the_example_of_plot_draws: no drawing"; failed=1; }
call model plot "$tmp/none" -o "$tmp/x.svg"
check plot_of_a_missing_file 2 '' "$tmp/none: No such file"
echo '{"perf": 1}' >"$tmp/bad.json"
call model plot "$tmp/bad.json" -o "$tmp/x.svg"
check plot_of_a_bad_model 1 '' "bad.json: field \"perf\" must be an array"
[ ! -e "$tmp/x.svg" ] && echo "ok - a_failed_plot_leaves_no_file" || { echo "not ok - a_failed_plot_leaves_no_file: it is there"; failed=1; }
echo "{$model, \"title\": \"a<b>&\", \"max_batch_size\": 1024, \"shape\": {\"gpus_per_node\": 2, \"max_replicas\": 8}}" >"$tmp/good.json"
call model plot "$tmp/good.json" -o "$tmp/none/x.svg"
check plot_into_a_missing_folder 2 '' "$tmp/none/x.svg: No such file"
call model plot "$tmp/good.json"
[ "$rc" -eq 0 ] && grep -q 'a&lt;b&gt;&amp;' "$tmp/out" && grep -q 'R = 8' "$tmp/out" && ! grep -q 'R = 16' "$tmp/out" &&
    echo "ok - plot_to_standard_output" || { echo "not ok - plot_to_standard_output: rc $rc"; failed=1; }
call; [ "$rc" -eq 0 ] && grep -q '^Usage: adaptdl COMMAND' "$tmp/out" &&
    echo "ok - no_command_shows_the_help" || { echo "not ok - no_command_shows_the_help: rc $rc"; failed=1; }
call nonsense; check unknown_command 2 '' 'unknown command "nonsense" (see: adaptdl --help)'
call help nonsense; check help_of_an_unknown_command 2 '' 'unknown command "nonsense"'
call model; check no_verb 2 '' 'no verb given (see: adaptdl help model)'
call model nonsense; check unknown_verb 2 '' 'unknown verb "nonsense"'
call model fit --nonsense; check unknown_option 2 '' 'option --nonsense is unknown'
call model fit a b; check two_files 2 '' 'one file at most, not 2'
call model plot; check plot_without_a_file 2 '' 'exactly one file'
call version; check version 0 "adaptdl $(cat VERSION)"
call --help
[ "$rc" -eq 0 ] && grep -q '^  model ' "$tmp/out" && echo "ok - help_lists_commands" || { echo "not ok - help_lists_commands: rc $rc"; failed=1; }
exit $failed
