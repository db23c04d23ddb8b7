# shellcheck shell=bash
# What the scripts share: system packages, the virtual environment, what can't run here and why. Sourced, not run.

root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv_dir=$root_dir/.venv
venv_python=$venv_dir/bin/python
stamp=$venv_dir/.foremount-setup

say() { printf '==> %s\n' "$*"; }
warn() { printf '!!  %s\n' "$*" >&2; }

# Runs a command as root: directly, through sudo, or not at all (status 1). Without a terminal sudo may not ask.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    if [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi
  else
    return 1
  fi
}

has_package() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# apt_install PACKAGE… : installs, and starts no daemon of theirs: the tests start nginx themselves, on a port of their own.
apt_install() {
  local policy=/usr/sbin/policy-rc.d ours='' status=0
  if [ ! -e "$policy" ] && printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null 2>&1; then
    ours=yes
    as_root chmod 755 "$policy"
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" </dev/null >"$apt_log" 2>&1 || status=$?
  [ -z "$ours" ] || as_root rm -f "$policy"
  return "$status"
}

apt_updated=''
apt_log=''

# need WHAT_FOR PACKAGE… : installs those that are missing. What can't be had is said and costs only what it is for.
need() {
  local what_for=$1 package
  local missing=()
  shift
  for package in "$@"; do has_package "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null 2>&1; then
    warn "no apt-get here; install these by hand for $what_for: ${missing[*]}"
    return 0
  fi
  say "installing ${missing[*]}: $what_for"
  if [ -z "$apt_log" ]; then apt_log=$(mktemp); fi
  if [ -z "$apt_updated" ]; then
    apt_updated=yes
    as_root apt-get update -qq </dev/null >"$apt_log" 2>&1 || warn "apt-get update failed, going on with the lists that are there"
  fi
  apt_install "${missing[@]}" && return 0
  # One that is not offered would cost the others: try each alone.
  for package in "${missing[@]}"; do
    apt_install "$package" || warn "$package can't be installed: $(tail -n 1 "$apt_log" | grep . || echo 'neither root nor sudo')"
  done
}

drop_apt_log() { if [ -n "$apt_log" ]; then rm -f "$apt_log"; fi; }
trap drop_apt_log EXIT

# Prints the first Python that is new enough and can build extensions and virtual environments; status 1 if there is none.
find_python() {
  local candidate
  for candidate in "${FOREMOUNT_PYTHON:-}" python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" - >/dev/null 2>&1 <<'PYTHON'; then
import ensurepip, os, sys, sysconfig, venv
assert sys.version_info >= (3, 11)
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
PYTHON
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

system_packages() {
  need "mounting as an ordinary user, and unmounting" fuse3
  need "compiling pyfuse3 and the passthrough shim" libfuse3-dev pkg-config gcc libc6-dev
  find_python >/dev/null || need "the virtual environment" python3 python3-dev python3-venv
  find_python >/dev/null || need "a Python that is new enough" python3.11 python3.11-dev python3.11-venv
}

# What an unchanged environment was made from.
fingerprint() {
  { cat "$root_dir/pyproject.toml" "$root_dir/setup.py" "$root_dir/vfs/kernel/_passthrough.c"
    printf '%s\n' "$root_dir" "$1" "$(pkg-config --modversion fuse3 2>/dev/null)"
  } | sha256sum | cut -d' ' -f1
}

# make_venv EXTRA: .venv with the package as editable install and what EXTRA ("test" or "dev") names.
make_venv() {
  local extra=$1 python wanted
  for wanted in dev "$extra"; do  # what was made for "dev" serves "test" as well
    if [ -x "$venv_python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(fingerprint "$wanted")" ]; then return 0; fi
  done
  system_packages
  if [ ! -x "$venv_python" ] || ! "$venv_python" -c 'import sys; assert sys.version_info >= (3, 11)' 2>/dev/null; then
    python=$(find_python) || { warn "no Python 3.11 or later with venv and headers; install python3-venv and python3-dev"; return 1; }
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear "$venv_dir"
  fi
  say "installing foremount and its libraries into .venv"
  export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
  if ! "$venv_python" -m pip install -q -e "${root_dir}[$extra]" </dev/null; then
    warn "not everything for [$extra] can be installed: trying one by one, what is missing costs its own tests only"
    "$venv_python" -m pip install -q -e "$root_dir" </dev/null
    one_by_one "$extra"
  fi
  fingerprint "$extra" >"$stamp"
}

# one_by_one EXTRA: each requirement of the extra by itself.
one_by_one() {
  local requirement
  "$venv_python" - "$root_dir/pyproject.toml" "$1" <<'PYTHON' | while read -r requirement; do
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    extras = tomllib.load(file)["project"]["optional-dependencies"]
own = [each for each in extras[sys.argv[2]] if not each.startswith("foremount[")]
inherited = extras["test"] if len(own) < len(extras[sys.argv[2]]) else []
print(*inherited, *own, sep="\n")
PYTHON
    "$venv_python" -m pip install -q "$requirement" </dev/null || warn "$requirement can't be installed"
  done
}

# Says what this machine can't do, so that nobody takes a skipped test or a slower figure for a fault.
what_is_missing() {
  [ -e /dev/fuse ] || warn "no /dev/fuse: nothing can be mounted here (modprobe fuse; in a container --device /dev/fuse)"
  [ "$(id -u)" = 0 ] || warn "not root: kernel passthrough needs CAP_SYS_ADMIN, and tests that need root are skipped"
  "$venv_python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("vfs.kernel._passthrough") is None)' ||
    warn "the passthrough shim was not built (a compiler and libfuse3-dev are needed): local files go through the page cache"
}
