#!/bin/sh
# Takes away what install.sh has put here. Mounts that run are ended first, in order; if one can't be, nothing is removed.
#
#   ./mount_scripts/uninstall.sh            keeps /etc/foremount, the cache, and what is staged but not uploaded
#   ./mount_scripts/uninstall.sh --purge    removes /etc/foremount too; cache and staging area are named, never removed
#
# DESTDIR, as usual, is put before every path.
set -eu

purge=''
case ${1:-} in
  --purge) purge=yes ;;
  '') ;;
  *) printf 'usage: uninstall.sh [--purge]\n' >&2; exit 2 ;;
esac
destination=${DESTDIR:-}
base=$destination/opt/foremount
command=$base/current/bin/foremount

# Mounts of an installation elsewhere are not ours to end.
if [ -z "$destination" ] && [ -x "$command" ]; then
  if [ -d /run/systemd/system ]; then
    systemctl disable --now 'foremount@*.service' 2>/dev/null || true
  fi
  awk '$3 == "fuse.foremount" { print $2 }' /proc/self/mounts | while read -r mountpoint; do
    mountpoint=$(printf '%b' "$mountpoint")
    "$command" umount "$mountpoint" || { printf 'uninstall.sh: %s is still mounted; nothing was removed\n' "$mountpoint" >&2; exit 1; }
  done
fi

for config in "$destination"/etc/foremount/*.toml; do
  [ -r "$config" ] || continue
  places=$(sed -n 's/^ *directory *= *"\(.*\)"$/\1/p' "$config")
  [ -z "$places" ] || printf 'left alone, of %s: %s\n' "$config" "$(printf '%s' "$places" | tr '\n' ' ')"
done
rm -f "$destination/sbin/mount.foremount" "$destination/etc/systemd/system/foremount@.service"
rm -rf "$base"
[ -z "$purge" ] || rm -rf "$destination/etc/foremount"
[ -n "$destination" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload
printf 'foremount is uninstalled\n'
