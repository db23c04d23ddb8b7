"""The process that every sandboxed one is forked from: `python -m vfs.samples.sandbox.zygote FD`.

It loads the libraries, gives up its rights, and then loads operators of one's own: their code never runs with more. A child
costs some milliseconds instead of half a second, so that a decoder that crashes is cheap. One thread; it ends with the
process that owns it, by the end of the socket, and its children with it.

A message to it is one letter with descriptors: "f" forks a child that gets a socket, input and output memory; "w PID" waits
for one that has ended.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import mmap
import os
import resource
import signal
import socket
import sys

import msgspec

from vfs.samples.operators import apply
from vfs.samples.operators.builtin import DECLARATIONS, MODULES
from vfs.samples.operators.declare import BadParameters, Declaration
from vfs.samples.operators.produce import OutputOverDeclaration
from vfs.samples.sandbox import confine
from vfs.samples.sandbox.messages import LENGTH, Confinement, Done, Settings, Start, Task, Trouble, frame
from vfs.units import decode_unit

_CPU_S_MAX = 24 * 3600
_TEXT_MAX = 300
_SHARED_MAX = 8 << 30
Loaded = dict[str, tuple[Declaration, apply.Function]]


def main() -> int:
    """Serve until the owner's end of the socket is closed."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the owner
    start = msgspec.msgpack.decode(_receive(control), type=Start, dec_hook=decode_unit)
    loaded = _built_in()
    gc.freeze()
    null, status = os.open(os.devnull, os.O_RDWR), os.open("/proc/self/status", os.O_RDONLY)
    if start.settings.idle:
        confine.when_nobody_else_wants_it()
    parts = dict(confine.share_nothing())
    os.chdir("/")
    parts |= dict(confine.become(start.settings.uid))
    parts |= dict(confine.read_only())
    try:
        for each in start.operators:
            loaded[each.declaration.full_name] = each.declaration, apply.own(each.declaration, each.code)
    except Exception as exc:
        control.sendall(frame(Trouble("failed", f"{each.declaration.full_name}: {type(exc).__name__}: {exc}"[:_TEXT_MAX])))
        return 1
    used = confine.in_use(status)
    control.sendall(frame(_try_out(start.settings, used, parts)))
    while True:
        message, fds, _, _ = socket.recv_fds(control, 64, 3)
        if not message:
            return 0
        if message.startswith(b"w"):
            _, status = os.waitpid(int(message[1:]), 0)
            control.sendall(b"%d\n" % status)
            continue
        pid = os.fork()
        if pid == 0:
            _child(fds, null, start.settings, used, loaded)
        pidfd = os.pidfd_open(pid)
        socket.send_fds(control, [b"%d\n" % pid], [pidfd])
        for fd in (*fds, pidfd):
            os.close(fd)


def _built_in() -> Loaded:
    """Load what is installed, so that children need not."""
    loaded: Loaded = {}
    for declaration in DECLARATIONS:
        try:
            importlib.import_module(MODULES[declaration.name])
        except ImportError:
            continue
        loaded[declaration.full_name] = declaration, apply.built_in(declaration)
    if "image@1" in loaded:
        from PIL import Image

        Image.init()
    return loaded


def _try_out(settings: Settings, used: tuple[int, int], parts: dict[str, str]) -> Confinement:
    """Return what is in force, as a child finds it."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        parts |= _confine_child(settings, used)
        found = Confinement(
            *confine.tried(),
            by=tuple(name for name, why_not in parts.items() if not why_not),
            missing=tuple(f"{name}: {why_not}" for name, why_not in parts.items() if why_not),
        )
        os.write(theirs, msgspec.msgpack.encode(found))
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    return msgspec.msgpack.decode(said, type=Confinement)


def _confine_child(settings: Settings, used: tuple[int, int]) -> dict[str, str]:
    confine.die_with_parent()
    confine.limit(settings.memory, _SHARED_MAX, used)
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S_MAX, _CPU_S_MAX))
    return dict(confine.filter_calls())


def _child(fds: list[int], null: int, settings: Settings, used: tuple[int, int], loaded: Loaded) -> None:
    """Serve one sample after the other; never returns."""
    try:
        faulthandler.disable()
        confine.close_all_but(fds, null)
        line, raw, made = socket.socket(fileno=fds[0]), fds[1], fds[2]
        _confine_child(settings, used)
        while True:
            task = msgspec.msgpack.decode(_receive(line), type=Task)
            line.sendall(frame(_answer(task, raw, made, loaded)))
    except BaseException:  # nothing of a child may reach the zygote's code
        os._exit(70)


def _answer(task: Task, raw_fd: int, made_fd: int, loaded: Loaded) -> Done | Trouble:
    before = _cpu_s()
    confine.limit_cpu(task.cpu_s)
    try:
        if task.operator not in loaded:
            return Trouble("unknown", f"{task.operator} is not loaded here")
        declaration, function = loaded[task.operator]
        raw = memoryview(mmap.mmap(raw_fd, task.size, mmap.MAP_SHARED, mmap.PROT_READ) if task.size else b"")
        applied = apply.apply(
            declaration, function, raw, params=task.params, seed=task.seed, provenance=task.provenance
        )  # fmt: skip
        if len(applied.file) > task.output_bytes:
            return Trouble("output", f"{len(applied.file)} bytes do not fit into {task.output_bytes}")
        with mmap.mmap(made_fd, task.output_bytes, mmap.MAP_SHARED) as made:
            made[: len(applied.file)] = applied.file
        return Done(len(applied.file), applied.pixels, applied.seconds, _cpu_s() - before)
    except MemoryError:
        return Trouble("memory", "takes more memory than a sample may", _cpu_s() - before)
    except BadParameters as exc:
        return Trouble("parameters", str(exc)[:_TEXT_MAX])
    except OutputOverDeclaration as exc:
        return Trouble("output", str(exc)[:_TEXT_MAX], _cpu_s() - before)
    except Exception as exc:
        return Trouble("failed", f"{type(exc).__name__}: {exc}"[:_TEXT_MAX], _cpu_s() - before)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _receive(line: socket.socket) -> bytes:
    """Return the body of the next frame; ends the process at the end of the stream."""
    (length,) = LENGTH.unpack(_exactly(line, LENGTH.size))
    return _exactly(line, length)


def _exactly(line: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = line.recv(size - len(found))
        if not piece:
            os._exit(0)
        found += piece
    return bytes(found)


if __name__ == "__main__":
    sys.exit(main())
