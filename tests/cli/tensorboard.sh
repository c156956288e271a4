#!/usr/bin/env bash
# Reads an event file of ours with the real TensorBoard (its Python package, from PyPI, in a virtual
# environment under build/ that is made once).
set -u
cd "$(dirname "$0")/../.."
helper=$(dirname "${ADAPTDL_BIN:-build/release/bin}")/helpers/helper_tensorboard
venv=build/venv-tensorboard
skip() { echo "skip - tensorboard_reads_our_files: $1"; exit 0; }

command -v python3 >/dev/null || skip "there is no python3"
[ -x "$helper" ] || { echo "not ok - tensorboard_reads_our_files: $helper is not built"; exit 1; }
if ! "$venv/bin/python" -c 'import tensorboard' 2>/dev/null; then
    rm -rf "$venv"
    python3 -m venv "$venv" >/dev/null 2>&1 || skip "python3 -m venv does not work"
    # setuptools: older releases of tensorboard import pkg_resources
    timeout 240 "$venv/bin/pip" install -q --disable-pip-version-check 'tensorboard>=2.12' 'setuptools<81' \
        >"$venv/pip.log" 2>&1 || skip "tensorboard cannot be installed: $(tail -n 1 "$venv/pip.log")"
fi

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
"$helper" "$logs" || { echo "not ok - tensorboard_reads_our_files: the writer failed"; exit 1; }
"$venv/bin/python" - "$logs" <<'PYTHON'
import math, sys
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

failed = False

def check(name, good, got=""):
    global failed
    failed |= not good
    print(f"ok - {name}" if good else f"not ok - {name}: got {got}")

events = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
check("tags", set(tags["scalars"]) == {"Loss/train", "not/finite"} and tags["histograms"] == ["Weights"]
      and tags["tensors"] == ["Notes"], tags)
check("file_version", events.file_version == 2.0, events.file_version)
loss = events.Scalars("Loss/train")
check("scalars", len(loss) == 1000 and all(
    e.step == i and e.wall_time == 1700000000.0 + 0.25 * i and abs(e.value * (i + 1) - 1) < 1e-6
    for i, e in enumerate(loss)), loss[:3])
check("scalar_nan", math.isnan(events.Scalars("not/finite")[0].value))
histogram = events.Histograms("Weights")[0]
value = histogram.histogram_value
check("histogram", histogram.step == 5 and value.num == 1001 and value.min == -5 and value.max == 5
      and abs(value.sum) < 1e-9 and sum(value.bucket) == 1001
      and len(value.bucket) == len(value.bucket_limit), value)
text = events.Tensors("Notes")[0]
check("text", text.step == 3 and tensor_util.make_ndarray(text.tensor_proto).item().decode()
      == "# h\u00e9llo\n\n*world*", text)
check("text_plugin", events.SummaryMetadata("Notes").plugin_data.plugin_name == "text")
sys.exit(failed)
PYTHON
