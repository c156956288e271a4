#!/usr/bin/env bash
# The runner in C under `adaptdl run`: resized by `adaptdl scale`, a replica killed, interrupted and started
# again. The logs have every epoch once, whatever happened, and TensorBoard reads them so.
. "$(dirname "$0")/../launched.sh"
cp "$bin/../examples/cifar10_resnet9" "$tmp" || exit 1
begin() { "$adaptdl" run --name runner-$$ "$@" >>"$tmp/log" 2>&1 </dev/null & pid=$!; }
epochs=8
logs=$tmp/logs
program=("$tmp/cifar10_resnet9" --examples 320 --threads 1 --epochs $epochs --logdir "$logs")

# ---- scaled, killed, interrupted, and on to the end ----
: >"$tmp/log"
begin -n 2 --max-restarts 6 --checkpoint "$tmp/ck" -- "${program[@]}"
wait_for '^\[0\] valid \(1/8\) acc' && ok it_begins || not_ok it_begins "no first epoch"
timeout 60 "$adaptdl" scale runner-$$ 1 >/dev/null && wait_for '^\[0\] valid \(2/8\) acc' && ok it_shrinks ||
    not_ok it_shrinks "no second epoch"
timeout 60 "$adaptdl" scale runner-$$ 2 >/dev/null && wait_for '^\[0\] train \(4/8\) ' && ok it_grows ||
    not_ok it_grows "no fourth epoch"
# The others go on without a restart, its sums included, unless the kill comes between two loops: one of three does not.
for epoch in 4 5 6; do
    wait_for "^\[0\] train \($epoch/8\) " || break
    victim=$(replica 0)
    [ -n "$victim" ] && kill -KILL "$victim" && wait_for "^\[0\] valid \($epoch/8\) acc"
    grep -q 'going on without it' "$tmp/log" && break
done
grep -q 'killed by signal 9' "$tmp/log" && wait_for '^\[0\] train \(6/8\) ' && ok it_survives_a_kill ||
    not_ok it_survives_a_kill "no sixth epoch"
grep -q 'going on without it' "$tmp/log" && ok and_is_not_restarted || not_ok and_is_not_restarted "each kill was a restart"
kill -INT $pid
end
[ "$rc" -eq 143 ] && ok it_is_interrupted || not_ok it_is_interrupted "exit $rc"
begin -n 2 --checkpoint "$tmp/ck" -- "${program[@]}"
end
[ "$rc" -eq 0 ] && ok the_same_command_finishes || not_ok the_same_command_finishes "exit $rc"

# ---- what is in the files ----
wanted=$(seq -s' ' $epochs)
for key in train valid _epoch_; do
    got=$(sed 1d "$logs/csv_logger/$key.csv" | cut -d, -f1 | tr '\n' ' ')
    [ "$got" = "$wanted " ] && [ "$(grep -c step "$logs/csv_logger/$key.csv")" -eq 1 ] &&
        ok "${key}_csv_has_every_epoch_once" || not_ok "${key}_csv_has_every_epoch_once" "epochs $got"
done
[ "$(head -n 1 "$logs/csv_logger/valid.csv")" = \
    step,accuracy01,accuracy01/std,accuracy03,accuracy03/std,loss,loss/mean,loss/std,lr,momentum ] &&
    ok the_columns_are_those_of_python || not_ok the_columns_are_those_of_python "$(head -n 1 "$logs/csv_logger/valid.csv")"
# The three best of the CSV file are the three models kept, and the list says so.
best=$(sed 1d "$logs/csv_logger/valid.csv" | sort -t, -k2,2gr -k1,1g | head -n 3 | cut -d, -f1)
kept=$(grep -oE 'model\.[0-9]+' "$logs/checkpoints/model.storage.json" | grep -oE '[1-9][0-9]*$')
files=$(cd "$logs/checkpoints" && ls model.[0-9]*.adl | grep -oE '[1-9][0-9]*' | sort -n)
[ "$kept" = "$best" ] && [ "$files" = "$(sort -n <<<"$best")" ] && ok the_best_models_are_kept ||
    not_ok the_best_models_are_kept "best $best, listed $kept, files $files"
cmp -s "$logs/checkpoints/model.best.adl" "$logs/checkpoints/$(printf 'model.%04d.adl' "$(head -n 1 <<<"$best")")" &&
    ok the_best_is_the_best || not_ok the_best_is_the_best "another model"
[ "$(ls "$logs"/tensorboard/*/events.* | wc -l)" -eq 3 ] && ok one_event_file_each || not_ok one_event_file_each "more"

# ---- as TensorBoard reads them ----
python=$(dirname "$0")/../../build/venv-tensorboard/bin/python
if "$python" -c 'import tensorboard' 2>/dev/null; then
    "$python" - "$logs" $epochs <<'PYTHON' && ok tensorboard_shows_every_epoch_once || not_ok tensorboard_shows_every_epoch_once "see above"
import csv, sys
from tensorboard.backend.event_processing import event_accumulator
logs, epochs = sys.argv[1], int(sys.argv[2])
for key in "train", "valid", "_epoch_":
    events = event_accumulator.EventAccumulator(f"{logs}/tensorboard/{key}", size_guidance={"scalars": 0})
    events.Reload()
    rows = list(csv.DictReader(open(f"{logs}/csv_logger/{key}.csv")))
    for name in rows[0]:
        if name == "step":
            continue
        got = [(e.step, e.value) for e in events.Scalars(name + "/epoch")]
        want = [(int(r["step"]), float(r[name])) for r in rows]
        assert len(got) == epochs and all(
            a == b and abs(x - y) <= 1e-5 * abs(y) for (a, x), (b, y) in zip(got, want)), (key, name, got, want)
PYTHON
else
    echo "skip - tensorboard_shows_every_epoch_once: tests/cli/tensorboard.sh has not installed it"
fi
exit $failed
