#!/bin/sh
# Installs this version beside others and makes it the current one. Run as root from the source tree or an unpacked release.
#
#   ./mount_scripts/install.sh                      a new environment /opt/foremount/VERSION
#   ./mount_scripts/install.sh --environment DIR    one that exists already
#
# Then: mount(8) knows `-t foremount`, systemd knows foremount@.service, and Slurm's scripts lie in /opt/foremount/slurm.
# No mount is started or touched: put the new version in force with `systemctl reload foremount@…` or `foremount upgrade`.
# DESTDIR, as usual, is put before every path.
set -eu
cd "$(dirname "$0")/.."

environment=''
while [ $# -gt 0 ]; do
  case $1 in
    --environment) environment=$2; shift 2 ;;
    *) printf 'usage: install.sh [--environment DIR]\n' >&2; exit 2 ;;
  esac
done
destination=${DESTDIR:-}
base=$destination/opt/foremount
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' vfs/__init__.py)
[ -n "$version" ] || { printf 'install.sh: the version is not found in vfs/__init__.py\n' >&2; exit 1; }

install -d "$base/slurm" "$destination/etc/foremount" "$destination/sbin" "$destination/etc/systemd/system"
if [ -z "$environment" ]; then
  environment=$base/$version
  ./mount_scripts/preflight.sh
  "${FOREMOUNT_PYTHON:-python3}" -m venv "$environment"
  "$environment/bin/python" -m pip install -q --disable-pip-version-check '.[s3]'
fi
[ -x "$environment/bin/foremount" ] || { printf 'install.sh: %s holds no foremount\n' "$environment" >&2; exit 1; }
ln -sfn "$(readlink -f "$environment")" "$base/current.new"
mv -T "$base/current.new" "$base/current" # a start in this moment finds the old one or the new one

install -m 755 mount_scripts/mount.foremount "$destination/sbin/mount.foremount"
install -m 755 mount_scripts/slurm/prolog.sh mount_scripts/slurm/epilog.sh "$base/slurm"
install -m 644 mount_scripts/slurm/common.sh "$base/slurm"
install -m 644 mount_scripts/systemd/foremount@.service "$destination/etc/systemd/system"
[ -n "$destination" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload
printf 'foremount %s is current (%s)\n' "$version" "$environment"
