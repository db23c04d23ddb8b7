"""Mount and unmount, as root through the system calls, as an ordinary user through fusermount3.

Nothing here stats a mount point in this process: one whose server hangs never answers. What has to be asked is asked in a
child process with a deadline.
"""

from __future__ import annotations

import array
import ctypes
import errno
import os
import select
import socket
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass

from vfs.keeper import init_codec, mountinfo, procfs, state
from vfs.keeper.mountinfo import FS_TYPE

SOURCE = "foremount"
MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
CAP_SYS_ADMIN = 21
INIT_DEADLINE_S = 10.0
PROBE_DEADLINE_S = 2.0
_REQUEST_BYTES = 1 << 16
"""INIT has 104 bytes; the kernel refuses a read with a buffer under 8 KiB."""
FUSECTL = "/sys/fs/fuse/connections"


class CantMount(Exception):
    """The mount can't be made, with what to do about it."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason, hint)
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason


@dataclass(frozen=True, slots=True)
class Connection:
    """A mounted connection whose INIT is answered.

    Attributes:
        fd: of /dev/fuse; the only one of this process for it.
        number: the device's minor, which names the connection in fusectl and sysfs.
    """

    fd: int
    number: int
    agreed: init_codec.Negotiated


_libc = ctypes.CDLL(None, use_errno=True)


def open_connection(mountpoint: str, *, why_no_passthrough: str, read_only: bool = False) -> Connection:
    """Mount at this path and answer the kernel's INIT.

    Args:
        mountpoint: settled (`vfs.rundir.settle`), an existing directory with nothing mounted on it.
        why_no_passthrough: the host's reason against it, or "".
        read_only: mount it so.
    Raises:
        CantMount: with reason and hint; nothing stays mounted.
    """
    as_root = os.geteuid() == 0
    fd = (_mount_as_root if as_root else _mount_as_user)(mountpoint, read_only)
    try:
        entry = mountinfo.on_top(mountinfo.read(), mountpoint)
        if entry is None or entry.fs_type != FS_TYPE:
            raise CantMount(f"{mountpoint} was mounted but is not in the mount table")
        agreed = _answer_init(fd, why_no_passthrough=why_no_passthrough)
    except CantMount:
        unmount(mountpoint, lazy=True)
        os.close(fd)
        raise
    return Connection(fd, entry.minor, agreed)


def open_samples(place: str, *, mountpoint: str, ours: Collection[int]) -> Connection:
    """Mount the samples, read-only, and answer the kernel's INIT.

    Where `place` is a directory that the lake shows, this blocks until its worker has been asked for it. A dead connection
    of ours that is still mounted there is detached first.

    Args:
        mountpoint: of the lake.
        ours: numbers of the connections that this keeper has made.
    Raises:
        CantMount: with reason and hint; nothing stays mounted.
    """
    is_beneath = place.startswith(mountpoint + "/")
    if is_beneath:
        above = mountinfo.on_top(mountinfo.read(), mountpoint)
        if above is None or above.minor not in ours:  # then `place` is somewhere else
            raise CantMount(f"{mountpoint} is not mounted any more")
    else:
        os.makedirs(place, exist_ok=True)
    while (entry := mountinfo.on_top(mountinfo.read(), place)) is not None:
        if entry.fs_type != FS_TYPE or (is_beneath and entry.minor not in ours):
            raise CantMount(f"{entry.source} ({entry.fs_type}) is mounted on {place}", "unmount it")
        unmount(place, lazy=True)
    return open_connection(place, why_no_passthrough="samples are read without OPEN", read_only=True)


def host_against_passthrough() -> str:
    """Return what this process lacks for passthrough, or ""."""
    if not _has_capability(CAP_SYS_ADMIN):
        return "no CAP_SYS_ADMIN"
    with open("/proc/self/uid_map", encoding="ascii") as file:
        if file.read().split() != ["0", "0", "4294967295"]:
            return "no CAP_SYS_ADMIN in the initial user namespace"
    return ""


def clear_way(mountpoint: str, recorded: state.KeeperState | None) -> list[str]:
    """Detach dead mounts of ours from the path; return a sentence for each.

    Args:
        recorded: what the run directory of this mount point says, or None.
    Raises:
        CantMount: a live foremount or something else is mounted there.
    """
    said = []
    while (entry := mountinfo.on_top(mountinfo.read(), mountpoint)) is not None:
        if entry.fs_type != FS_TYPE:
            raise CantMount(
                f"{entry.source} ({entry.fs_type}) is mounted on {mountpoint}", "unmount it or choose another path"
            )
        if recorded is not None and procfs.is_same(recorded.pid, recorded.starttime):
            raise CantMount(f"{mountpoint} is already mounted, by process {recorded.pid}", f"foremount umount {mountpoint}")
        ours = recorded is not None and recorded.connection == entry.minor
        answer = probe(mountpoint)
        if answer == "alive" or (answer == "hangs" and not ours):
            raise CantMount(
                f"{mountpoint} is a foremount that is not recorded in this run directory ({answer})",
                f"umount {mountpoint}, or umount -l {mountpoint} if its server is gone",
            )
        if ours and recorded is not None:
            _kill_orphans(recorded)
            abort_connection(entry.minor)  # a thread that the kernel holds in a push would hold the unmount up
        unmount(mountpoint, lazy=True)
        said.append(f"detached the dead mount of connection {entry.minor} on {mountpoint}")
    return said


def probe(mountpoint: str, timeout_s: float = PROBE_DEADLINE_S) -> str:
    """Return "alive", "dead" (its connection has ended) or "hangs", asked with statfs in a child process.

    statfs and not stat: attributes may still be cached when nobody answers any more.
    """
    program = (
        "import os,sys,errno\n"
        "try: os.statvfs(sys.argv[1])\n"
        "except OSError as e: sys.exit(3 if e.errno in (errno.ENOTCONN, errno.ECONNABORTED) else 0)\n"
    )
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", program, mountpoint], stdin=subprocess.DEVNULL)
    try:
        return "dead" if child.wait(timeout_s) == 3 else "alive"
    except subprocess.TimeoutExpired:
        child.kill()
        return "hangs"
    finally:
        _reap(child)


def unmount(mountpoint: str, *, lazy: bool) -> str:
    """Return "done", "busy" or "gone" (nothing is mounted there).

    Not lazy, this may take as long as the server takes to write back mapped pages.
    """
    if os.geteuid() != 0:
        return _unmount_as_user(mountpoint, lazy=lazy)
    flags = UMOUNT_NOFOLLOW | (MNT_DETACH if lazy else 0)
    if _libc.umount2(os.fsencode(mountpoint), flags) == 0:
        return "done"
    number = ctypes.get_errno()
    if number == errno.EBUSY:
        return "busy"
    if number in (errno.EINVAL, errno.ENOENT):
        return "gone"
    raise CantMount(f"umount {mountpoint}: {os.strerror(number)}")


def raise_read_ahead(connection: int, read_ahead_kb: int) -> tuple[int, str]:
    """Set the kernel's read-ahead; return (KiB in force, why it is not what was asked for or "").

    INIT can only lower it: the kernel takes the smaller of 128 KiB and what the reply says.
    """
    path = f"/sys/class/bdi/0:{connection}/read_ahead_kb"
    why = ""
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(str(read_ahead_kb))
    except OSError as exc:
        why = f"{path}: {exc.strerror}"
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read()), why
    except OSError:
        return 0, why


def abort_connection(connection: int) -> bool:
    """End the connection through fusectl: every waiting caller gets ECONNABORTED. Return whether it could be done."""
    path = f"{FUSECTL}/{connection}/abort"
    if not os.path.exists(path) and os.geteuid() == 0 and mountinfo.on_top(mountinfo.read(), FUSECTL) is None:
        _libc.mount(b"fusectl", FUSECTL.encode(), b"fusectl", 0, None)
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write("1")
    except OSError:
        return False
    return True


def is_connected(fd: int) -> bool:
    """Return whether the connection still is: not unmounted, not aborted. Never blocks."""
    poller = select.poll()
    poller.register(fd, 0)
    return not any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poller.poll(0))


def fuse_descriptors() -> list[int]:
    """Return this process's descriptors of /dev/fuse."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                found.append(int(name))
        except FileNotFoundError:  # the one that listdir itself used
            pass
    return found


def _mount_as_root(mountpoint: str, read_only: bool) -> int:
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as exc:
        raise CantMount(
            f"/dev/fuse can't be opened: {exc.strerror}", "modprobe fuse; in a container pass --device /dev/fuse"
        ) from exc
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    flags = MS_NOSUID | MS_NODEV | (MS_RDONLY if read_only else 0)
    if _libc.mount(SOURCE.encode(), os.fsencode(mountpoint), FS_TYPE.encode(), flags, options.encode()) != 0:
        number = ctypes.get_errno()
        os.close(fd)
        hint = "needs CAP_SYS_ADMIN; in a container pass --cap-add SYS_ADMIN" if number == errno.EPERM else ""
        raise CantMount(f"mount on {mountpoint}: {os.strerror(number)}", hint)
    return fd


def _mount_as_user(mountpoint: str, read_only: bool) -> int:
    """Have fusermount3 open and mount; it passes the descriptor through the socket that _FUSE_COMMFD names."""
    options = f"fsname={SOURCE},subtype=foremount,default_permissions,nosuid,nodev"
    if user_allow_other():
        options += ",allow_other"
    if read_only:
        options += ",ro"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        environ = {**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}
        command = ["fusermount3", "-o", options, "--", mountpoint]
        try:
            child = subprocess.Popen(
                command, env=environ, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        except FileNotFoundError as exc:
            raise CantMount("fusermount3 is not installed", "apt install fuse3") from exc
        theirs.close()
        try:
            _, complaint = child.communicate(timeout=INIT_DEADLINE_S)
        except subprocess.TimeoutExpired as exc:
            child.kill()
            raise CantMount(f"fusermount3 did not answer within {INIT_DEADLINE_S:.0f} s") from exc
        if child.returncode != 0:
            raise CantMount(complaint.decode(errors="replace").strip() or f"fusermount3 exited with {child.returncode}")
        return _receive_descriptor(ours)


def _receive_descriptor(sock: socket.socket) -> int:
    sock.settimeout(INIT_DEADLINE_S)
    room = array.array("i", [0])
    _, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_LEN(room.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            room = array.array("i")
            room.frombytes(payload[: room.itemsize])
            return room[0]
    raise CantMount("fusermount3 passed no descriptor")


def _answer_init(fd: int, *, why_no_passthrough: str) -> init_codec.Negotiated:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    if not poller.poll(INIT_DEADLINE_S * 1000):
        raise CantMount(f"the kernel sent no INIT within {INIT_DEADLINE_S:.0f} s")
    try:
        offer = init_codec.decode_request(os.read(fd, _REQUEST_BYTES))
        agreed = init_codec.negotiate(offer, why_no_passthrough=why_no_passthrough)
        os.write(fd, init_codec.encode_reply(offer.unique, agreed))
    except init_codec.UnusableInit as exc:
        raise CantMount(str(exc)) from exc
    except OSError as exc:
        raise CantMount(f"INIT failed: {exc.strerror}") from exc
    return agreed


def user_allow_other(path: str = "/etc/fuse.conf") -> bool:
    """Return whether ordinary users may let others in: without it other users, root too, can't enter their mounts."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return any(line.strip() == "user_allow_other" for line in file)
    except OSError:
        return False


def _unmount_as_user(mountpoint: str, *, lazy: bool) -> str:
    if mountinfo.on_top(mountinfo.read(), mountpoint) is None:
        return "gone"
    command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", mountpoint]
    ran = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=False
    )
    if ran.returncode == 0:
        return "done"
    # fusermount3 has one exit status for everything, so the table says what happened
    return "busy" if mountinfo.on_top(mountinfo.read(), mountpoint) is not None else "gone"


def _kill_orphans(recorded: state.KeeperState) -> None:
    """End children that outlived their keeper; PR_SET_PDEATHSIG has done so unless they had not come to set it."""
    for child in recorded.children.values():
        if child.pid and procfs.signal_same(child.pid, child.starttime, 9):
            procfs.wait_gone(child.pid, child.starttime, 2.0)


def _has_capability(number: int) -> bool:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False


def _reap(child: subprocess.Popen[bytes]) -> None:
    """Collect a killed child if it ends soon; one that hangs in the kernel is left to init."""
    try:
        child.wait(0.5)
    except subprocess.TimeoutExpired:
        pass
