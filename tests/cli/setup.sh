#!/usr/bin/env bash
# `make` says what it does in one line per phase. And tools/setup beside another package manager, with the real apt in a
# root of the test's own: it waits for each of the locks, says who has them, and goes on when they are free.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp -d /tmp/adlsetup.XXXXXX)
failed=0 holder=
trap '[ -z "$holder" ] || kill "$holder" 2>/dev/null; rm -rf "$tmp"' EXIT
ok() { echo "ok - $1"; }
not_ok() { echo "not ok - $1: $2"; sed 's/^/# /' "$tmp/out"; failed=1; }
eventually() { for _ in $(seq 600); do "$@" && return 0; sleep 0.1; done; return 1; }

# make, with others in the place of what it calls
mkdir -p "$tmp/tree/tools" "$tmp/bin"
cp "$root/Makefile" "$tmp/tree"
printf '#!/bin/sh\necho "setup      nothing to install"\n' >"$tmp/tree/tools/setup"
cat >"$tmp/bin/cmake" <<'SH'
#!/bin/sh
echo "many words of cmake"
while [ "$1" != -B ]; do shift; done
mkdir -p "$2" && touch "$2/build.ninja"
SH
printf '#!/bin/sh\necho "many words of ninja"\nexit ${NINJA_FAILS:-0}\n' >"$tmp/bin/ninja"
chmod +x "$tmp/tree/tools/setup" "$tmp/bin/cmake" "$tmp/bin/ninja"
makes() { env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS PATH="$tmp/bin:$PATH" "$@" make -C "$tmp/tree" --no-print-directory >"$tmp/out" 2>&1; }
phases='setup      nothing to install
configure  build/release
build      build/release
ready      build/release/bin'
makes && [ "$(cat "$tmp/out")" = "$phases" ] && ok make_says_a_line_per_phase || not_ok make_says_a_line_per_phase "other lines"
makes NINJA_FAILS=1 && not_ok make_shows_what_failed "it did not fail" ||
    { grep -q 'many words of ninja' "$tmp/out" && ok make_shows_what_failed || not_ok make_shows_what_failed "not shown"; }

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null && [ "$(id -u)" -eq 0 ] ||
    { echo "skip - setup_waits: needs apt, dpkg and root"; exit $failed; }

# A repository of two packages without contents, and an empty system to install them on.
arch=$(dpkg --print-architecture) sys=$tmp/sys
mkdir -p "$tmp"/{repo,tools} "$sys"/{etc/apt/{apt.conf,preferences,sources.list}.d,var/lib/{dpkg/{info,updates},apt/lists/partial},var/{log/apt,cache/apt/archives/partial}}
for name in adl-one adl-two; do
    mkdir -p "$tmp/deb/DEBIAN"
    printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: nothing\n' $name >"$tmp/deb/DEBIAN/control"
    dpkg-deb -b "$tmp/deb" "$tmp/repo/$name.deb" >/dev/null || exit 1
    { cat "$tmp/deb/DEBIAN/control"; printf 'Filename: ./%s.deb\nSize: %d\nSHA256: %s\n\n' $name \
        "$(stat -c %s "$tmp/repo/$name.deb")" "$(sha256sum <"$tmp/repo/$name.deb" | cut -d' ' -f1)"; } >>"$tmp/repo/Packages"
done
: >"$sys/var/lib/dpkg/status"
echo "deb [trusted=yes] file:$tmp/repo ./" >"$sys/etc/apt/sources.list"
cat >"$tmp/apt.conf" <<CONF
Dir "$sys";
Dir::State::status "$sys/var/lib/dpkg/status";
Dir::Bin::Methods "/usr/lib/apt/methods";
APT::Architecture "$arch";
APT::Architectures {"$arch";};
APT::Sandbox::User "root";
DPkg::Options {"--root=$sys";"--force-not-root";"--log=/dev/null";};
CONF
export APT_CONFIG=$tmp/apt.conf DPKG_ADMINDIR=$sys/var/lib/dpkg
cp "$root/tools/setup" "$tmp/tools/setup"

# hold FILE: takes the lock as apt does
hold() {
    mkdir -p "$(dirname "$1")"
    python3 -c 'import fcntl, sys, time
f = open(sys.argv[1], "w"); fcntl.lockf(f, fcntl.LOCK_EX); open(sys.argv[2], "w").close(); time.sleep(300)' "$1" "$tmp/held" &
    holder=$!
    eventually test -e "$tmp/held" || exit 1
    rm "$tmp/held"
}
# waits_for NAME FILE PACKAGE
waits_for() {
    local setup
    echo "$3" >"$tmp/tools/packages"
    hold "$2"
    "$tmp/tools/setup" >"$tmp/out" 2>&1 </dev/null & setup=$!
    if eventually grep -q "waiting for another package manager: $2, held by process $holder (python3)" "$tmp/out"; then
        kill -0 $setup 2>/dev/null && ok "$1" || not_ok "$1" "it did not wait"
    else
        not_ok "$1" "it did not say so"
    fi
    kill "$holder"; wait "$holder" 2>/dev/null; holder=
    wait $setup && dpkg-query -W -f '${db:Status-Status}\n' "$3" 2>/dev/null | grep -qx installed &&
        ok "$1_and_goes_on" || not_ok "$1_and_goes_on" "not installed"
}
waits_for waits_for_dpkg "$sys/var/lib/dpkg/lock-frontend" adl-one
waits_for waits_for_the_lists "$sys/var/lib/apt/lists/lock" adl-two
"$tmp/tools/setup" >"$tmp/out" 2>&1 && grep -q 'nothing to install' "$tmp/out" && ok nothing_twice || not_ok nothing_twice "$(cat "$tmp/out")"
# Somebody who never lets go: apt's own words, when the time is up.
echo adl-three >"$tmp/tools/packages"
hold "$sys/var/lib/apt/lists/lock"
ADL_APT_WAIT=1 "$tmp/tools/setup" >"$tmp/out" 2>&1 && not_ok gives_up "it did not fail" ||
    { grep -q "Could not get lock" "$tmp/out" && ok gives_up || not_ok gives_up "no reason"; }
exit $failed
