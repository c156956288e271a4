#!/usr/bin/env bash
# The running server against docs/openapi.yaml: see openapi_check.py.
set -u
bin=${ADAPTDL_BIN:-build/release/bin}
for module in yaml jsonschema requests; do
    /usr/bin/python3 -c "import $module" 2>/dev/null || { echo "skip - openapi: Debian's python3 has no $module"; exit 0; }
done
exec timeout -k 10 180 /usr/bin/python3 tests/cli/openapi_check.py "$bin"
