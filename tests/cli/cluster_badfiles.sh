#!/usr/bin/env bash
# Bad job files on their whole way: through `adaptdl submit` and through the API. Every field wrong in turn,
# bombs, cycles, garbage and files that are too large: one line that says where, the documented exit status, and
# nothing is created; the scheduler lives on.
. "$(dirname "$0")/cluster.sh"
cluster_start --nodes 2 --slots 2
socket=$tmp/s/adaptdl.sock
daemon=$(cat "$tmp/s/adaptdl-sched.pid")

# post TYPE FILE: http and $tmp/answer
post() {
    http=$(curl -sS -m 30 --unix-socket "$socket" -H "Content-Type: $1" --data-binary "@$2" -o "$tmp/answer" \
        -w '%{http_code}' http://localhost/api/v1/jobs 2>"$tmp/err")
}
# An error has one line; it starts with the place and has the text somewhere.
refused_by_cli() { # FILE PLACE TEXT
    call submit "$1"
    [ "$rc" -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] &&
        grep -qF "adaptdl submit: $1$2" "$tmp/err" && grep -qF -- "$3" "$tmp/err" && return 0
    echo "# adaptdl submit $1: exit $rc, wanted \"$2\" and \"$3\": $(head -c 300 "$tmp/err")"
    return 1
}
refused_by_api() { # TYPE FILE CODE PLACE TEXT
    post "$1" "$2"
    jq -e --arg code "$3" --arg place "$4" --arg text "$5" '(.error.code | tostring) == $code and
        (.error.message | contains($place) and contains($text) and (contains("\n") | not))' "$tmp/answer" >/dev/null 2>&1 &&
        [ "$http" = "$3" ] && return 0
    echo "# POST $2: $http, wanted $3, \"$4\" and \"$5\": $(head -c 300 "$tmp/answer")"
    return 1
}

# ---- every field in turn ----
# $tmp/bad/N.yaml, and a line "N LINE FIELD" of the index for each (LINE 0: the field is missing).
mkdir "$tmp/bad"
/usr/bin/python3 - "$tmp/bad" <<'PY'
import sys
container = "spec.template.spec.containers[0]"
lines = [
    ("apiVersion: adaptdl.petuum.com/v1", "apiVersion", ["v1", "1", "[a]", "-"]),
    ("kind: AdaptDLJob", "kind", ["Job", "1", "{}", "-"]),
    ("metadata:", "metadata", ["1", "text", "[a]", "-"]),
    ("  name: good", "metadata.name", ["1", "[a]", "A", "a/b", "../a", "a.b", "'a b'", "''", 64 * "a"]),
    ("  namespace: team", "metadata.namespace", ["1", "{}", "a/b", "..", "''"]),
    ("  labels:", "metadata.labels", ["1", "text", "[a]"]),
    ("    part: one", "metadata.labels.part", ["1", "true", "[a]", "'a b'"]),
    ("  annotations:", "metadata.annotations", ["1", "text", "[a]"]),
    ("    note: any", "metadata.annotations.note", ["1", "true", "[a]"]),
    ("spec:", "spec", ["1", "text", "[a]", "-"]),
    ("  minReplicas: 1", "spec.minReplicas", ["-1", "1.5", "one", "'1'", "[1]", "10001"]),
    ("  maxReplicas: 4", "spec.maxReplicas", ["0", "-1", "many", "'4'", "{}"]),
    ("  preemptible: false", "spec.preemptible", ["1", "no", "'true'", "[]"]),
    ("  maxRetries: 2", "spec.maxRetries", ["-1", "1.5", "two", "'2'"]),
    ("  template:", "spec.template", ["1", "text", "[a]", "-"]),
    ("    spec:", "spec.template.spec", ["1", "text", "[a]"]),
    ("      terminationGracePeriodSeconds: 7", "spec.template.spec.terminationGracePeriodSeconds",
     ["-1", "1.5", "text", "100000"]),
    ("      containers:", "spec.template.spec.containers", ["1", "text", "{a: b}", "[]", "-"]),
    ("      - name: main", container + ".name", ["1", "[a]", "A", "a/b", "''"]),
    ("        image: example.com/x:1", container + ".image", ["1", "[a]", "true"]),
    ("        workingDir: /", container + ".workingDir", ["1", "[a]", "relative", "../x"]),
    ("        command: [sleep, '1']", container + ".command", ["1", "text", "{a: b}", "[1]", "[[a]]", "['']"]),
    ("        args: ['2']", container + ".args", ["1", "text", "{a: b}", "[1]", "[{}]"]),
    ("        env:", container + ".env", ["1", "text", "[1]", "[{value: a}]", "[{name: 'a=b'}]", "[{name: A, vlaue: b}]"]),
    ("        - name: DATA", container + ".env[0].name", ["1", "[]", "''"]),
    ("          value: data", container + ".env[0].value", ["1", "true", "[]"]),
    ("        resources:", container + ".resources", ["1", "text", "[a]"]),
    ("          requests:", container + ".resources.requests", ["1", "text", "[a]", "{gpu: 1}"]),
    ("            cpu: 500m", container + ".resources.requests.cpu", ["lots", "-1", "1x", "[]", "1e30", "9E"]),
    ("          limits:", container + ".resources.limits", ["1", "text", "[a]"]),
    ("            memory: 1Gi", container + ".resources.limits.memory", ["lots", "-1", "1GiB"]),
]
def indent(text):
    spaces = len(text) - len(text.lstrip())
    return spaces + 2 * text.lstrip().startswith("-")
def text_with(at, value):
    out, skipping = [], False
    for i, (text, _, _) in enumerate(lines):
        if skipping and indent(text) > indent(lines[at][0]):
            continue
        skipping = i == at
        if i != at:
            out.append(text)
        elif value != "-":
            out.append(text[:text.index(":") + 1] + " " + value)
    return "\n".join(out) + "\n"
where, number = sys.argv[1], 0
with open(where + "/index", "w") as index:
    for at, (_, path, values) in enumerate(lines):
        for value in values:
            with open(f"{where}/{number}.yaml", "w") as file:
                file.write(text_with(at, value))
            print(number, 0 if value == "-" else at + 1, path, file=index)
            number += 1
with open(where + "/good.yaml", "w") as file:
    file.write(text_with(len(lines), ""))
PY

call submit --dry-run "$tmp/bad/good.yaml"
check the_file_itself_is_good 0
good=0 bad=0
while read -r number line path; do
    place=:$line:
    [ "$line" = 0 ] && place=:
    if refused_by_cli "$tmp/bad/$number.yaml" "$place" "$path" &&
        refused_by_api application/yaml "$tmp/bad/$number.yaml" 400 "job file$place" "$path"; then
        good=$((good + 1))
    else
        bad=$((bad + 1))
    fi
done <"$tmp/bad/index"
echo "info - $((good + bad)) files with one wrong field, each submitted twice"
[ $bad -eq 0 ] && [ $good -gt 100 ] && ok every_field_wrong_in_turn || not_ok every_field_wrong_in_turn "$bad of $((good + bad))"

# ---- files that are wrong as a whole: NAME CODE PLACE TEXT, the file is $tmp/NAME.yaml ----
whole() {
    local name=$1
    if refused_by_cli "$tmp/$name.yaml" "$3" "$4" && refused_by_api application/yaml "$tmp/$name.yaml" "$2" "${5-job file}" "$4"; then
        ok "$name"
    else
        not_ok "$name" "see above"
    fi
}
{
    echo 'a: &a [x, x, x, x, x, x, x, x, x, x]'
    last=a
    for next in b c d e f g h i; do
        echo "$next: &$next [*$last, *$last, *$last, *$last, *$last, *$last, *$last, *$last, *$last, *$last]"
        last=$next
    done
} >"$tmp/bomb.yaml"
whole bomb 400 : values
{
    printf 'a: &a "%s"\nb: [' "$(head -c 300000 /dev/zero | tr '\0' x)"
    for _ in $(seq 100); do printf '*a, '; done
    echo ']'
} >"$tmp/text_bomb.yaml"
whole text_bomb 400 : expanded
printf 'metadata: &a\n  b: {c: [*a]}\n' >"$tmp/cycle.yaml"
whole cycle 400 :2: 'contain itself'
printf 'a: &a\n  b: *b\nc: &b [*a]\n' >"$tmp/cycle_of_two.yaml"
whole cycle_of_two 400 :2: '*b'
head -c 10000000 /dev/zero | tr '\0' a >"$tmp/ten_megabytes.yaml"
whole ten_megabytes 413 : 1048576 body
{ cat "$tmp/bad/good.yaml"; head -c 10000000 /dev/zero | tr '\0' '#'; } >"$tmp/ten_megabytes_of_comment.yaml"
whole ten_megabytes_of_comment 413 : 1048576 body
head -c 4096 "$bin/adaptdl" >"$tmp/garbage.yaml"
whole garbage 400 : 'not YAML'
head -c 4096 /dev/zero >"$tmp/zeros.yaml"
whole zeros 400 : 'not YAML'
head -c 100000 /dev/zero | tr '\0' '[' >"$tmp/deep.yaml"
whole deep 400 :1: deep
: >"$tmp/empty.yaml"
whole empty 400 : empty
printf -- '---\na: 1\n---\nb: 2\n' >"$tmp/two_documents.yaml"
whole two_documents 400 : document
sed 's/minReplicas: 1/minReplicas: 99999999999999999999/' "$tmp/bad/good.yaml" >"$tmp/number.yaml"
whole number 400 :11: 99999999999999999999
sed 's/name: good/name: "a\\0b"/' "$tmp/bad/good.yaml" >"$tmp/nul.yaml"
whole nul 400 :4: NUL
{ cat "$tmp/bad/good.yaml"; echo 'kind: AdaptDLJob'; } >"$tmp/twice.yaml"
whole twice 400 : kind
sed 's/minReplicas: 1/minreplicas: 1/' "$tmp/bad/good.yaml" >"$tmp/spelling.yaml"
whole spelling 400 :11: 'did you mean "minReplicas"?'
sed 's/minReplicas: 1/minReplicas: 5/' "$tmp/bad/good.yaml" >"$tmp/more_than_most.yaml"
whole more_than_most 400 : spec.maxReplicas
printf '!!python/object/apply:os.system ["touch %s/owned"]\n' "$tmp" >"$tmp/tag.yaml"
whole tag 400 :1: tag
[ ! -e "$tmp/owned" ] && ok nothing_is_executed || not_ok nothing_is_executed "it was"

# ---- JSON, and archives, straight to the API ----
json() { # NAME TEXT WHAT: a JSON document
    printf '%s' "$2" >"$tmp/$1.json"
    refused_by_api application/json "$tmp/$1.json" 400 'job file' "$3" && ok "$1" || not_ok "$1" "see above"
}
json json_line $'{"apiVersion": "adaptdl.petuum.com/v1",\n"kind": 3}' ':2: kind'
json json_syntax $'{"apiVersion":\n "x",\n}' ':3:'
json json_list '[]' ''
json json_text '"text"' ''
json json_deep "$(head -c 100000 /dev/zero | tr '\0' '[')" ''
json json_twice '{"kind": "AdaptDLJob", "kind": "AdaptDLJob"}' ''
mkdir "$tmp/tar"
sed 's|name: good|name: a/b|' "$tmp/bad/good.yaml" >"$tmp/tar/job.yaml"
tar -C "$tmp/tar" -cf "$tmp/job.tar" job.yaml
refused_by_api application/x-tar "$tmp/job.tar" 400 ':4:' metadata.name && ok archive || not_ok archive "see above"
refused_by_api application/x-tar "$tmp/garbage.yaml" 400 '' '' && ok no_archive || not_ok no_archive "see above"
refused_by_api text/html "$tmp/bad/good.yaml" 415 '' '' && ok wrong_type || not_ok wrong_type "see above"

# ---- and nothing came of it ----
call ls -A
[ "$(wc -l <"$tmp/out")" -eq 1 ] && ok no_job_was_created || not_ok no_job_was_created "$(cat "$tmp/out")"
left=$(find "$tmp/s/jobs" "$tmp/s/uploads" -mindepth 1 2>/dev/null)
[ -z "$left" ] && ok no_file_is_left || not_ok no_file_is_left "$left"
[ "$(cat "$tmp/s/adaptdl-sched.pid")" = "$daemon" ] && kill -0 "$daemon" && ok the_scheduler_lives || not_ok the_scheduler_lives "it does not"
job_file after true
call submit --wait "$tmp/after.yaml"
check a_good_job_still_runs 0
finish
