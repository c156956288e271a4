#!/usr/bin/env bash
# `adaptdl run FILE.py` and other files that people name: what is run, with which arguments, and what is said where
# nothing can be.
. "$(dirname "$0")/../launched.sh"
adaptdl=$(realpath "$adaptdl")
run() { (cd "$tmp/at" && timeout -k 5 120 env PATH="${search:-$PATH}" "$adaptdl" run "$@" >"$tmp/log" 2>"$tmp/err" </dev/null); rc=$?; }
# check NAME WANTED-EXIT [LINE...]: the replicas' lines are these, in any order
check() {
    local name=$1 wanted=$2
    shift 2
    [ "$rc" -eq "$wanted" ] || { not_ok "$name" "exit $rc, wanted $wanted: $(tail -n 3 "$tmp/err")"; return; }
    [ "$(sort "$tmp/log")" = "$(printf '%s\n' "$@" | sort)" ] || { not_ok "$name" "$(cat "$tmp/log")"; return; }
    ok "$name"
}
said() { # NAME LINE: on standard error, the only one but for replicas' own
    [ "$(grep -v '^\[' "$tmp/err")" = "adaptdl run: $2" ] && ok "$1" || not_ok "$1" "$(cat "$tmp/err")"
}
mkdir "$tmp/at" "$tmp/at/sub" && cd "$tmp/at" || exit 1
cat >train.py <<'PY'
import os, sys
print(os.environ["ADAPTDL_REPLICA_RANK"], sys.argv, os.path.basename(sys.executable).startswith("python3"))
PY
cp train.py sub/train.py

# ---- scripts ----
run train.py; check a_script_is_run_by_python 0 "[0] 0 ['train.py'] True"
grep -q '^adaptdl run: train.py is run by python3$' "$tmp/err" && ok it_says_so || not_ok it_says_so "$(cat "$tmp/err")"
grep -qE '^adaptdl run: train.py-[0-9]+: started 1 replica$' "$tmp/err" && ok the_run_has_its_name || not_ok the_run_has_its_name "$(cat "$tmp/err")"
run -q train.py; check quietly 0 "[0] 0 ['train.py'] True"
[ ! -s "$tmp/err" ] && ok nothing_is_said_then || not_ok nothing_is_said_then "$(cat "$tmp/err")"
run train.py --lr 0.1 'two words' '' -n 7 -- --help
check arguments_are_the_scripts_own 0 "[0] 0 ['train.py', '--lr', '0.1', 'two words', '', '-n', '7', '--', '--help'] True"
run -- train.py -v; check after_two_dashes_too 0 "[0] 0 ['train.py', '-v'] True"
for i in 1 2 3; do # replicas that do not end at one instant, and know nothing of us
    run -n 3 train.py x; check "three_replicas_run_once_$i" 0 "[0] 0 ['train.py', 'x'] True" "[1] 1 ['train.py', 'x'] True" "[2] 2 ['train.py', 'x'] True"
done
run -n 2 -- sh -c 'sleep 0.$ADAPTDL_REPLICA_RANK; echo done'; check also_when_one_takes_longer 0 '[0] done' '[1] done'
run ./train.py; check by_a_path 0 "[0] 0 ['./train.py'] True"
run sub/train.py; check in_another_directory 0 "[0] 0 ['sub/train.py'] True"
run "$tmp/at/sub/train.py"; check by_its_whole_path 0 "[0] 0 ['$tmp/at/sub/train.py'] True"
echo 'import sys; sys.exit(7)' >seven.py
run seven.py; check its_exit_status_counts 7
grep -q 'replica 0 exited with 7' "$tmp/err" && ok and_is_told || not_ok and_is_told "$(cat "$tmp/err")"
echo 'raise ValueError("no")' >raises.py
run raises.py; check a_traceback_is_the_end 1
grep -q '^\[0\] ValueError: no' "$tmp/err" && ok and_is_seen || not_ok and_is_seen "$(cat "$tmp/err")"

# ---- the run bit and the first line ----
cp train.py bit.py && chmod +x bit.py # no first line: the kernel would give it to a shell
run bit.py; check with_a_run_bit_only 0 "[0] 0 ['bit.py'] True"
run ./bit.py; check with_a_run_bit_only_by_a_path 0 "[0] 0 ['./bit.py'] True"
printf '#!/bin/sh\necho "a shell has $*"\n' >own.py
run own.py 1; check without_the_bit_the_line_is_a_comment 1
chmod +x own.py
run own.py 1 2; check a_first_line_is_obeyed 0 '[0] a shell has 1 2'
run ./own.py 1 2; check by_a_path_too 0 '[0] a shell has 1 2'
grep -q 'run by python3' "$tmp/err" && not_ok python_is_not_named_then "$(cat "$tmp/err")" || ok python_is_not_named_then
cp own.py program && chmod -x program
run program; check without_a_run_bit 2 ''
said what_to_do_about_it 'program: may not be executed; if it is a program: chmod +x program, if a script: name what runs it, as in: adaptdl run -- sh program'
chmod +x program
run program; check not_by_its_name_alone 2 ''
said where_it_is 'program: No such file or directory; it is in this directory: adaptdl run ./program'
run ./program 3; check a_program_by_a_path 0 '[0] a shell has 3'

# ---- what is not there ----
run trian.py; check no_such_script 2 ''; said no_such_script_is_named 'trian.py: No such file or directory'
run ./trian.py; check no_such_script_by_a_path 2 ''; said its_path_is_named './trian.py: No such file or directory'
run trian; check no_such_program 2 ''; said no_such_program_is_named 'trian: No such file or directory'
mkdir folder.py
run ./folder.py; check a_directory 2 ''; said a_directory_is_named './folder.py: is a directory, not a program'
run; check nothing_at_all 2 ''; grep -q 'which program?' "$tmp/err" && ok it_is_asked_for || not_ok it_is_asked_for "$(cat "$tmp/err")"
search=$tmp/sub run train.py; check without_python 2 ''
[ "$(tail -n 1 "$tmp/err")" = 'adaptdl run: python3: No such file or directory' ] && ok python_is_missed || not_ok python_is_missed "$(cat "$tmp/err")"
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null && setpriv --reuid 65534 --clear-groups "$adaptdl" version >/dev/null 2>&1; then # nobody may read it, not even to run it
    mkdir "$tmp/nobody" && chown 65534 "$tmp/nobody" && chmod 755 "$tmp" "$tmp/at" && chmod 600 train.py
    (cd "$tmp/at" && timeout 60 env XDG_RUNTIME_DIR="$tmp/nobody" PATH=/usr/bin:/bin setpriv --reuid 65534 --clear-groups "$adaptdl" run train.py >"$tmp/log" 2>"$tmp/err" </dev/null)
    grep -q "train.py.*Permission denied" "$tmp/err" && ok a_script_that_may_not_be_read || not_ok a_script_that_may_not_be_read "$(cat "$tmp/err")"
fi
exit $failed
