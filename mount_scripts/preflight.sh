#!/usr/bin/env bash
# Looks at a bare host before anything is installed: what Foremount needs, what makes it fast, and what to do about each.
# Exit status 0 if it can be installed and mounted, 1 if something that is needed is missing. Changes nothing.
# What only an installed version can tell (the cache disk, a live mount) says `foremount doctor`.
set -u

missing=0
good() { printf 'ok       %s\n' "$1"; }
less() { printf 'slower   %s\n         -> %s\n' "$1" "$2"; }
lacks() { printf 'MISSING  %s\n         -> %s\n' "$1" "$2"; missing=1; }

release=$(uname -r)
major=${release%%.*} minor=${release#*.}
minor=${minor%%[!0-9]*}
number=$((major * 1000 + minor))
if [ "$(uname -s)" != Linux ] || [ "$number" -lt 5017 ]; then
  lacks "kernel $release" "Linux 5.17 or later; 6.9 for local speed"
elif [ "$number" -lt 6009 ]; then
  less "kernel $release: no passthrough" "Linux 6.9 reads local files without the daemon"
else
  good "kernel $release"
fi

if [ ! -c /dev/fuse ]; then
  lacks "/dev/fuse" "modprobe fuse; in a container pass --device /dev/fuse"
elif [ -r /dev/fuse ] && [ -w /dev/fuse ]; then
  good "/dev/fuse can be opened"
else
  lacks "/dev/fuse can't be opened by this user" "mount as root, or chmod 666 /dev/fuse"
fi

if [ "$(id -u)" = 0 ]; then
  good "root"
elif command -v fusermount3 >/dev/null 2>&1; then
  less "not root: no passthrough, and others can't enter without user_allow_other" "mount as root"
else
  lacks "neither root nor fusermount3" "apt-get install fuse3, or mount as root"
fi

python=''
for candidate in ${FOREMOUNT_PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
  if "$candidate" -c 'import ensurepip, sys, venv; assert sys.version_info >= (3, 11)' >/dev/null 2>&1; then
    python=$candidate
    break
  fi
done
if [ -n "$python" ]; then
  good "$("$python" --version) ($(command -v "$python"))"
else
  lacks "Python 3.11 or later with venv" "apt-get install python3 python3-venv"
fi

if command -v gcc >/dev/null 2>&1 && command -v pkg-config >/dev/null 2>&1 && pkg-config --exists fuse3 2>/dev/null; then
  good "a compiler and libfuse $(pkg-config --modversion fuse3)"
else
  lacks "what pyfuse3 is compiled with" "apt-get install gcc pkg-config libfuse3-dev python3-dev"
fi

descriptors=$(ulimit -Hn)
if [ "$descriptors" = unlimited ] || [ "$descriptors" -ge 65536 ]; then
  good "$descriptors open files for each process"
else
  less "$descriptors open files for each process" "LimitNOFILE=1048576 in the unit, or ulimit -Hn"
fi

if command -v timedatectl >/dev/null 2>&1 && [ "$(timedatectl show -p NTPSynchronized --value 2>/dev/null)" = no ]; then
  less "the clock is not synchronised" "chrony or systemd-timesyncd: replicas are told by time, too"
fi
exit "$missing"
