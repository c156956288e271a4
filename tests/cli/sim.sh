#!/usr/bin/env bash
# adaptdl sim on the synthetic traces: output, files, comparison, and one line for every bad input.
set -u
adaptdl=$ADAPTDL_BIN/adaptdl
traces=examples/traces
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

check() { # name, command...: the command succeeds
    if "${@:2}" >"$dir/out" 2>"$dir/err"; then echo "ok - $1"; else echo "not ok - $1: $(head -c 300 "$dir/err" "$dir/out")"; fi
}
refused() { # name, text, command...: exit 2 and exactly one line on stderr with the text
    "${@:3}" >"$dir/out" 2>"$dir/err"
    local rc=$?
    if [ $rc -eq 2 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qF -- "$2" "$dir/err"; then
        echo "ok - $1"
    else
        echo "not ok - $1: exit $rc, $(head -c 300 "$dir/err")"
    fi
}

run=("$adaptdl" sim --traces $traces --nodes 4)
check help grep -q 'Policies and their constants' <("$adaptdl" sim --help)
check runs "${run[@]}" --policy rank --json "$dir/o.json" --log "$dir/o.log" --svg "$dir/o.svg" $traces/workload-small.csv
cp "$dir/out" "$dir/table"; check table_has_mean grep -q "^mean " "$dir/table"
check json_has_fields grep -q '"policy":"rank","mean_avg_jct":[0-9.]*,"workloads":\[{"name":"workload-small","avg_jct"' "$dir/o.json"
check svg_ends grep -q '</svg>' "$dir/o.svg"
check both_policies "${run[@]}" --policy rank,fifo --svg "$dir/two.svg" $traces/workload-small.csv
# One time axis from 0 for both; jobs that touch, on a device or beside it, have other colours.
check svg_is_readable /usr/bin/python3 - "$dir/two.svg" <<'EOF'
import re, sys
text = open(sys.argv[1]).read()
bars = []
for attributes, hint in re.findall(r'<rect([^>]*)>\s*<title>([^<]*: node \d+,[^<]*)</title>', text):
    x, y, w, hh = (float(re.search(r'\b%s="([^"]*)"' % a, attributes).group(1)) for a in ("x", "y", "width", "height"))
    job, start, end = re.match(r"(.*): node \d+, \d+ GPUs, (\d+) to (\d+) s", hint).groups()
    bars.append((job, x, x + w, y, y + hh, re.search(r'fill="([^"]*)"', attributes).group(1), float(start), float(end)))
assert len(bars) > 20, len(bars)
long = [b for b in bars if b[7] - b[6] > 1000]
scale = sum(b[2] - b[1] for b in long) / sum(b[7] - b[6] for b in long)  # pixels a second
zeros = [b[1] - b[6] * scale for b in long]
assert max(zeros) - min(zeros) < 2, (min(zeros), max(zeros))
pairs = same = 0
for i, a in enumerate(bars):
    for b in bars[i + 1:]:
        if a[0] == b[0] or abs(a[3] - b[3]) > 1.5 * (a[4] - a[3]) or a[2] < b[1] - 1 or b[2] < a[1] - 1:
            continue
        pairs += 1
        same += a[5] == b[5]
assert pairs > 20 and same <= 0.02 * pairs, (pairs, same)
EOF
check log_has_reasons grep -q '"why":"starts on 1 (1.00x)' "$dir/o.log"
check again "${run[@]}" --policy rank --log "$dir/p.log" $traces/workload-small.csv
check same_log cmp "$dir/o.log" "$dir/p.log"
check compares "${run[@]}" --policy fifo,rank,tiresias,optimus $traces/workload-small.csv $traces/workload-small.csv
cp "$dir/out" "$dir/table"; check ratios grep -q "average JCT relative to fifo" "$dir/table"
check json_to_stdout bash -c "'$adaptdl' sim --traces $traces --nodes 4 --json - $traces/workload-small.csv | head -c 10 | grep -q '{\"policy\"'"
check constants "${run[@]}" --set hep=1 --set p=0.7 $traces/workload-small.csv
check interference "${run[@]}" --policy tiresias --interference 0.5 $traces/workload-small.csv

w=$dir/w.csv
header=name,time,application,num_replicas,batch_size
refused no_traces '--traces DIR or --snapshot FILE is missing' "$adaptdl" sim $traces/workload-small.csv
refused no_workload 'no workload given' "${run[@]}"
refused unknown_option '--bogus' "${run[@]}" --bogus $traces/workload-small.csv
refused unknown_policy 'unknown policy "best"; there are: rank' "${run[@]}" --policy best $traces/workload-small.csv
refused unknown_constant 'no parameter "x"' "${run[@]}" --set x=1 $traces/workload-small.csv
refused constant_range 'hep must be within' "${run[@]}" --set hep=-1 $traces/workload-small.csv
refused bad_nodes '--nodes must be a whole number' "${run[@]}" --nodes 0 $traces/workload-small.csv
refused missing_file "$dir/none.csv: No such file" "${run[@]}" "$dir/none.csv"
refused missing_traces "$dir/none: No such file" "$adaptdl" sim --traces "$dir/none" $traces/workload-small.csv
: >"$w"; refused empty_file "$w:1: empty" "${run[@]}" "$w"
echo "$header" >"$w"; refused only_header "no jobs below the header" "${run[@]}" "$w"
printf 'name,time,application,num_replicas\na,1,language,1\n' >"$w"; refused missing_column "$w:1: field \"batch_size\"" "${run[@]}" "$w"
printf '%s\na,soon,language,1,64\n' $header >"$w"; refused word_for_number "$w:2: field \"time\": \"soon\"" "${run[@]}" "$w"
printf '%s\na,-3,language,1,64\n' $header >"$w"; refused negative_time "$w:2: field \"time\": -3" "${run[@]}" "$w"
printf '%s\na,1,chess,1,64\n' $header >"$w"; refused unknown_application "$w:2: field \"application\": no traces of application \"chess\"" "${run[@]}" "$w"
{ echo $header; yes 'a,1,language,1,64' | head -n 10000000; } >"$w"; refused ten_million_lines "$w:1000002: more than 1000000 rows" "${run[@]}" "$w"
cp -r $traces "$dir/t"; rm "$dir/t/language/scalability.csv"
refused missing_trace_file "language/scalability.csv: No such file" "$adaptdl" sim --traces "$dir/t" $traces/workload-small.csv
refused unwritable_output "/nonexistent/o.json" "${run[@]}" --json /nonexistent/o.json $traces/workload-small.csv
# A scheduler of one's own, on the public C API alone (examples/schedule.c).
"$ADAPTDL_BIN/../examples/schedule" >"$dir/schedule" 2>&1
diff - "$dir/schedule" >"$dir/out" <<'EOF2' && echo "ok - a_cluster_through_the_library" || echo "not ok - a_cluster_through_the_library: $(head -c 300 "$dir/out")"
  60 s  start small on 1
  60 s  start large on 1
  60 s  start late on 1
 120 s  stop large
 120 s  stop late
 120 s  start large on 2
 120 s  start late on 1
small keeps 1 (1.00x)
large keeps 2 (1.98x)
late keeps 1 (1.00x)
EOF2
