"""Uses a live mount as frameworks do. Run as a process of its own by `doctor`, which kills it at a deadline.

Standard library only. Standard output carries one JSON list per line: ["begin", name] before a check,
[verdict, name, found, hint] after it, so that the reader knows what hangs. Writes only below the directory it is given,
in a directory of its own that it removes.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import functools
import json
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterator

_PAGE = mmap.PAGESIZE
_ENTRIES_MAX = 2000
READ_CHECKS = (
    "read", "seek", "mmap shared", "mmap private", "O_DIRECT", "flock shared", "xattr", "sendfile",
)  # fmt: skip
WRITE_CHECKS = (
    "create and write", "append", "ftruncate", "rename over", "fsync", "fsync of a directory", "flock exclusive",
    "record lock", "mmap shared write", "mmap sees write", "unlink while open", "hard link", "symlink", "chmod", "utime",
    "set xattr",
)  # fmt: skip


class Flaw(Exception):
    """A check found something else than POSIX says."""


def main(arguments: list[str]) -> int:
    """Run all checks; return 0 whatever they found."""
    parser = argparse.ArgumentParser(prog="python -m vfs.cli.compat")
    parser.add_argument("mountpoint")
    parser.add_argument("--file", default="", help="a file to read; without it the first one found")
    parser.add_argument("--directory", default="", help="where to write; without it nothing is written")
    options = parser.parse_args(arguments)
    _run("statfs", lambda: _statfs(options.mountpoint))
    found = [options.file]
    _run("listing", lambda: _find(options.mountpoint, found))
    for name in READ_CHECKS:
        _run(name, functools.partial(_READING[name], found[0])) if found[0] else _skip(
            name, "the mount holds no file to read"
        )
    if not options.directory:
        for name in WRITE_CHECKS:
            _skip(name, "no writable mount in the table")
        return 0
    scratch = os.path.join(options.directory, f".foremount-doctor-{os.getpid()}")
    if not _run("mkdir", lambda: os.mkdir(scratch)):
        for name in WRITE_CHECKS:
            _skip(name, "no directory could be made")
        return 0
    try:
        for name in WRITE_CHECKS:
            _run(name, functools.partial(_WRITING[name], os.path.join(scratch, name.replace(" ", "_"))))
    finally:
        _run("remove", lambda: shutil.rmtree(scratch))
    return 0


def _run(name: str, check: Callable[[], str | None]) -> bool:
    print(json.dumps(["begin", name]), flush=True)
    try:
        found = check() or "works"
        verdict = "ok"
    except Flaw as exc:
        verdict, found = "bad", str(exc)
    except OSError as exc:
        verdict, found = "bad", exc.strerror or str(exc)
    print(json.dumps([verdict, name, found, ""]), flush=True)
    return verdict == "ok"


def _skip(name: str, why: str) -> None:
    print(json.dumps(["skipped", name, why, ""]), flush=True)


def _expect(holds: bool, flaw: str) -> None:
    if not holds:
        raise Flaw(flaw)


def _statfs(mountpoint: str) -> str:
    found = os.statvfs(mountpoint)
    _expect(found.f_bsize > 0 and found.f_namemax >= 255, f"block size {found.f_bsize}, names of {found.f_namemax} bytes")
    return f"{found.f_blocks * found.f_frsize >> 30} GiB, {found.f_bavail * found.f_frsize >> 30} GiB free"


def _find(mountpoint: str, found: list[str]) -> str:
    """Put the first file over one page in its place, else the first that is not empty."""
    seen = 0
    small = ""
    for entry in _walk(mountpoint):
        seen += 1
        size = entry.stat(follow_symlinks=False).st_size
        if not found[0] and entry.is_file(follow_symlinks=False):
            if size > _PAGE:
                found[0] = entry.path
                break
            small = small or (entry.path if size else "")
        if seen >= _ENTRIES_MAX:
            break
    found[0] = found[0] or small
    return f"{seen} entries looked at"


def _walk(directory: str) -> Iterator[os.DirEntry[str]]:
    """Yield entries, breadth first, without the status files."""
    waiting = [directory]
    while waiting:
        with os.scandir(waiting.pop(0)) as entries:
            for entry in entries:
                if entry.name == ".foremount":
                    continue
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


# -- reading


def _opened(path: str, flags: int = os.O_RDONLY) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


def _head(fd: int) -> bytes:
    return os.pread(fd, min(os.fstat(fd).st_size, 1 << 16), 0)


def _read(path: str) -> str:
    with open(path, "rb") as file:
        head, size = file.read(1 << 16), os.fstat(file.fileno()).st_size
    _expect(len(head) == min(size, 1 << 16), f"{len(head)} bytes came of {size}")
    return f"{path}, {size} bytes"


def _seek(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        _expect(end == os.fstat(file.fileno()).st_size, "the end is not at the size")
        file.seek(end - 1)
        _expect(len(file.read(10)) == 1, "the last byte can't be read alone")


def _mapped(path: str, flags: int, protection: int) -> None:
    fd = _opened(path)
    try:
        head = _head(fd)
        with mmap.mmap(fd, len(head), flags=flags, prot=protection) as mapped:
            _expect(mapped[:] == head, "the mapping shows other bytes than read")
            if flags == mmap.MAP_PRIVATE:
                mapped[0] = head[0] ^ 1
                _expect(os.pread(fd, 1, 0) == head[:1], "a private write reached the file")
    finally:
        os.close(fd)


def _direct(path: str) -> None:
    head_fd, fd = _opened(path), _opened(path, os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, 1 << 16)
        count = os.preadv(fd, [buffer], 0)
        _expect(buffer[:count] == _head(head_fd), "O_DIRECT gives other bytes")
        size = os.fstat(fd).st_size
        tail = size - size % _PAGE
        _expect(os.preadv(fd, [buffer], tail) == min(size - tail, 1 << 16), "the unaligned tail is cut")
    finally:
        os.close(fd)
        os.close(head_fd)


def _flock_shared(path: str) -> None:
    fd = _opened(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _xattr(path: str) -> str:
    try:
        return f"{len(os.listxattr(path))} attributes"
    except OSError as exc:
        if exc.errno == errno.ENOTSUP:
            return "none kept, said so with ENOTSUP"
        raise


def _sendfile(path: str) -> None:
    fd, sink = _opened(path), os.open("/dev/null", os.O_WRONLY)
    try:
        _expect(os.sendfile(sink, fd, 0, 4096) > 0, "nothing was sent")
    finally:
        os.close(sink)
        os.close(fd)


_READING: dict[str, Callable[[str], str | None]] = {
    "read": _read,
    "seek": _seek,
    "mmap shared": lambda path: _mapped(path, mmap.MAP_SHARED, mmap.PROT_READ),
    "mmap private": lambda path: _mapped(path, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE),
    "O_DIRECT": _direct,
    "flock shared": _flock_shared,
    "xattr": _xattr,
    "sendfile": _sendfile,
}
assert set(_READING) == set(READ_CHECKS)


# -- writing: each in files of its own, named for the check


def _written(path: str, content: bytes = b"0123456789") -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    os.write(fd, content)
    return fd


def _expect_content(path: str, content: bytes) -> None:
    with open(path, "rb") as file:
        _expect(file.read() == content, "other bytes than written")
    _expect(os.stat(path).st_size == len(content), "a size other than written")


def _create(path: str) -> None:
    os.close(_written(path))
    _expect_content(path, b"0123456789")
    try:
        _written(path)
    except FileExistsError:
        return
    raise Flaw("O_EXCL does not refuse an existing file")


def _append(path: str) -> None:
    os.close(_written(path))
    with open(path, "ab") as file:
        file.write(b"abc")
    _expect_content(path, b"0123456789abc")


def _ftruncate(path: str) -> None:
    fd = _written(path)
    try:
        os.ftruncate(fd, 4)
        os.ftruncate(fd, 6)
        _expect(os.pread(fd, 100, 0) == b"0123\0\0", "other bytes after cutting and growing")
    finally:
        os.close(fd)


def _rename_over(path: str) -> None:
    os.close(_written(path, b"old"))
    os.close(_written(f"{path}.new", b"newer"))
    reader = _opened(path)
    try:
        os.replace(f"{path}.new", path)
        _expect_content(path, b"newer")
        _expect(os.pread(reader, 100, 0) == b"old", "an open file changed under its reader")
    finally:
        os.close(reader)


def _fsync(path: str) -> None:
    fd = _written(path)
    try:
        os.fsync(fd)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _fsync_directory(path: str) -> None:
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _flock_exclusive(path: str) -> None:
    first, second = _written(path), _opened(path, os.O_RDWR)
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        raise Flaw("two hold the lock at once")
    finally:
        os.close(second)
        os.close(first)


def _record_lock(path: str) -> None:
    fd = _written(path)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 4, 2)
        fcntl.lockf(fd, fcntl.LOCK_UN, 4, 2)
    finally:
        os.close(fd)


def _mmap_write(path: str) -> None:
    fd = _written(path)
    try:
        with mmap.mmap(fd, 10) as mapped:
            mapped[0:3] = b"abc"
            mapped.flush()
    finally:
        os.close(fd)
    _expect_content(path, b"abc3456789")


def _mmap_sees_write(path: str) -> None:
    fd = _written(path)
    try:
        with mmap.mmap(fd, 10, prot=mmap.PROT_READ) as mapped:
            os.pwrite(fd, b"abc", 0)
            _expect(mapped[:3] == b"abc", "a mapping does not show what was written after it")
    finally:
        os.close(fd)


def _unlink_open(path: str) -> None:
    fd = _written(path)
    try:
        os.unlink(path)
        _expect(os.pread(fd, 100, 0) == b"0123456789", "an open file is gone with its name")
        _expect(not os.path.exists(path), "the name is still there")
    finally:
        os.close(fd)


def _hard_link(path: str) -> None:
    os.close(_written(path))
    os.link(path, f"{path}.link")
    _expect_content(f"{path}.link", b"0123456789")


def _symlink(path: str) -> None:
    os.symlink("target", path)
    _expect(os.readlink(path) == "target", "the target is another")


def _chmod(path: str) -> None:
    os.close(_written(path))
    os.chmod(path, 0o600)
    _expect(os.stat(path).st_mode & 0o777 == 0o600, "the mode did not change")


def _utime(path: str) -> None:
    os.close(_written(path))
    os.utime(path, ns=(10**18, 10**18 + 123456789))
    _expect(os.stat(path).st_mtime_ns == 10**18 + 123456789, "the time was rounded")


def _set_xattr(path: str) -> str:
    os.close(_written(path))
    try:
        os.setxattr(path, "user.foremount", b"1")
    except OSError as exc:
        if exc.errno == errno.ENOTSUP:
            return "not kept, said so with ENOTSUP"
        raise
    _expect(os.getxattr(path, "user.foremount") == b"1", "another value came back")
    return "works"


_WRITING: dict[str, Callable[[str], str | None]] = {
    "create and write": _create,
    "append": _append,
    "ftruncate": _ftruncate,
    "rename over": _rename_over,
    "fsync": _fsync,
    "fsync of a directory": _fsync_directory,
    "flock exclusive": _flock_exclusive,
    "record lock": _record_lock,
    "mmap shared write": _mmap_write,
    "mmap sees write": _mmap_sees_write,
    "unlink while open": _unlink_open,
    "hard link": _hard_link,
    "symlink": _symlink,
    "chmod": _chmod,
    "utime": _utime,
    "set xattr": _set_xattr,
}
assert set(_WRITING) == set(WRITE_CHECKS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
