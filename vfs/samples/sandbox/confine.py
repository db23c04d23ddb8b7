"""Takes rights away from this process, for good. Linux only.

Each part is asked for and, where the kernel or the host has none, left out and named; what is refused in the end is tried
out, not concluded (`tried`). Order matters: namespaces and the user id need rights that the later parts take.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import vfs

try:
    import pyseccomp as seccomp  # now: it looks for libseccomp with programs that a sandbox can't start

    _no_seccomp = ""
except (ImportError, RuntimeError, OSError) as _exc:  # RuntimeError: no libseccomp on this host
    seccomp = None
    _no_seccomp = f"pyseccomp or libseccomp is not installed: {_exc}"

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x40000000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
"""The numbers of these calls are the same on every architecture."""
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FS_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_RIGHTS, _SCOPES = 3, 3

_FILES = "read write readv pread64 lseek close fstat newfstatat stat lstat statx readlink readlinkat access faccessat"
_FILES += " faccessat2 getdents64 getcwd openat open dup fcntl poll ppoll recvfrom sendto"
_MEMORY = "mmap munmap mremap mprotect madvise brk futex membarrier"
_ITSELF = "rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall rseq set_robust_list exit exit_group"
_ITSELF += (
    " getpid gettid getuid geteuid getgid getegid getrusage getrlimit setrlimit prlimit64 sched_yield sched_getaffinity"
)
_HOST = "clock_gettime clock_getres gettimeofday time nanosleep clock_nanosleep getrandom uname sysinfo"
_ALLOWED = f"{_FILES} {_MEMORY} {_ITSELF} {_HOST}".split()
"""What decoding takes. Whatever is not here fails with EPERM: sockets, processes, threads, execve, ptrace, kill, ioctl."""


def share_nothing() -> Iterator[tuple[str, str]]:
    """Leave the network and IPC of the host. Yields (part, why not) for each, "" where it is in force."""
    flags = _CLONE_NEWNET | _CLONE_NEWIPC
    if os.geteuid() == 0:
        yield "network namespace", _call("unshare", flags)
    else:
        yield "network namespace", _call("unshare", flags | _CLONE_NEWUSER)


def become(uid: int) -> Iterator[tuple[str, str]]:
    """Become an unprivileged user, if this is root, and never another again."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    yield f"uid {os.geteuid()}", ""
    os.umask(0o077)
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    yield "no new privileges", ""


def read_only() -> Iterator[tuple[str, str]]:
    """Have Landlock refuse every write, and every read of what is not Python's, its libraries' or the system's."""
    abi = _libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if abi < 1:
        yield "landlock", _why("the kernel has none")
        return
    handled = max((rights for since, rights in _FS_RIGHTS.items() if since <= abi), default=0)
    attributes = struct.pack("QQQ", handled, _NET_RIGHTS if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = _libc.syscall(_LANDLOCK_CREATE, attributes, size, 0)
    if ruleset < 0:
        yield "landlock", _why("refused")
        return
    try:
        for path in _readable():
            _allow_reading(ruleset, path)
        done = _libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0)
        yield f"landlock {abi}", "" if done == 0 else _why("refused")
    finally:
        os.close(ruleset)


def filter_calls() -> Iterator[tuple[str, str]]:
    """Refuse every system call that decoding doesn't take."""
    if seccomp is None:
        yield "seccomp", _no_seccomp
        return
    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for name in _ALLOWED:
        with contextlib.suppress(OSError, ValueError):  # not on this architecture
            rules.add_rule(seccomp.ALLOW, name)
    own = seccomp.Arg(0, seccomp.EQ, os.getpid())  # abort() of a decoder signals itself
    for name in ("tgkill", "kill"):
        rules.add_rule(seccomp.ALLOW, name, own)
    try:
        rules.load()
    except OSError as exc:
        yield "seccomp", f"refused: {exc.strerror}"
        return
    yield "seccomp", ""


def limit(memory: int, shared: int, used: tuple[int, int]) -> None:
    """Bound memory, files, processes and their size.

    Args:
        memory: bytes beyond what is `used`.
        shared: bytes that may be mapped beside it, for input and output.
        used: as `in_use` says.
    """
    space, data = used
    for kind, bound in (
        (resource.RLIMIT_DATA, data + memory),
        (resource.RLIMIT_AS, space + 2 * memory + shared),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (bound, bound))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def in_use(status: int) -> tuple[int, int]:
    """Return a process's address space and private writable memory, in bytes.

    Args:
        status: of /proc/PID/status, opened before it was locked.
    """
    text = os.pread(status, 1 << 16, 0).decode()
    fields = dict(line.split(":", 1) for line in text.splitlines())
    space, data, stack = (int(fields[name].split()[0]) << 10 for name in ("VmSize", "VmData", "VmStk"))
    return space, data + stack


def limit_cpu(seconds: float) -> None:
    """Be killed after so much more CPU time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    bound = int(usage.ru_utime + usage.ru_stime + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (bound, hard))


def when_nobody_else_wants_it() -> None:
    """Take only CPU time that is left over. For a process that leads a session, as a zygote does.

    With autogroups, the default of most distributions, a session has its share of a core however low its processes stand
    in it: two sessions, one of them SCHED_IDLE, halve a core (measured, kernel 6.18). So the session stands back as well.
    """
    os.nice(19)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
        file.write("19")


def die_with_parent() -> None:
    """Be killed when the parent ends. After `become`: a change of user undoes it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def close_all_but(kept: list[int], null: int) -> None:
    """Close every descriptor but these and the first three, which become `null`."""
    for fd in range(3):
        os.dup2(null, fd)
    last = 2
    for fd in sorted(kept):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def tried() -> tuple[bool, bool, bool]:
    """Return whether the network, writing a file, and starting a program are refused: by trying each."""
    return _is_refused(_connect), _is_refused(_write), _is_refused(_execute)


def _is_refused(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except OSError:
        return True
    return False


def _connect() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((b"127.0.0.1", 9))


def _write() -> None:
    for directory in ("/tmp", "/var/tmp", "/dev/shm", os.getcwd()):  # noqa: S108  # tried, not used
        with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=directory):
            return
    raise PermissionError(errno.EPERM, "every one of them")


def _execute() -> None:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    os.waitpid(pid, 0)


def _readable() -> list[str]:
    """Return the directories that Python and its libraries load from, and what else they look at."""
    package = Path(vfs.__file__).parent
    found = {sys.prefix, sys.base_prefix, str(package), *sys.path, "/usr", "/lib", "/lib64"}
    found |= {"/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/null"}
    return sorted(path for path in found if os.path.isabs(path) and os.path.exists(path))


def _allow_reading(ruleset: int, path: str) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rights = _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        rule = struct.pack("=Qi", rights, fd)
        if _libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0) != 0:
            raise OSError(ctypes.get_errno(), "landlock_add_rule", path)
    finally:
        os.close(fd)


def _call(name: str, *arguments: int) -> str:
    return "" if getattr(_libc, name)(*arguments) == 0 else _why("refused")


def _why(sentence: str) -> str:
    return f"{sentence}: {os.strerror(ctypes.get_errno())}"


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
