#!/usr/bin/env bash
# adaptdl ray hands over to the command of the Python package, as it is, and says so when that is not there.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
printf '#!/bin/sh\nprintf "<%%s>" "$@"\nexit 7\n' >"$dir/adaptdl-ray"
chmod +x "$dir/adaptdl-ray"
check() { # name, status, text, command...: exit status, and text in what it says
    "${@:4}" >"$dir/out" 2>&1
    local rc=$?
    if [ $rc -eq "$2" ] && grep -qF -- "$3" "$dir/out"; then
        echo "ok - $1"
    else
        echo "not ok - $1: exit $rc, $(head -c 300 "$dir/out")"
    fi
}
handed() { PATH=$dir:$PATH "$ADAPTDL_BIN/adaptdl" ray "$@"; }
check arguments_and_status_are_handed_over 7 '<submit><-f><a b.py><--help><--><-x>' handed submit -f 'a b.py' --help -- -x
check not_installed 1 'adaptdl-ray is not installed; it comes with: pip install adaptdl-ray' \
    env PATH=/nowhere "$ADAPTDL_BIN/adaptdl" ray list
check no_command 2 'expected submit, attach, stop, status, list or trials' "$ADAPTDL_BIN/adaptdl" ray
