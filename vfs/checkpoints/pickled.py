"""Pickles from anybody, read as plain values: nothing is imported, called or built but dicts, lists, tuples and stubs.

Pure: no I/O, no clock.

The standard library's unpickler in Python interprets the opcodes, with its table cut down to those that describe values. Its
C twin is faster but gives memory for any memo index that a pickle names, and both would hash whatever is used as a key: a
tuple of tuples of … takes for ever. Classes become stubs that keep what they were given.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from vfs.checkpoints.layout import NoLayout

_OPCODES = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM"),
    *("SETITEMS", "GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD"),
    *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MEMOIZE"),
)
_KEYS = (str, int, bytes)


class Stub:
    """An object of a class that is not here.

    Attributes:
        name: "module.class" of it; a class that was not called yet has no `args`.
        args: what it was called with.
        state: what it was given afterwards, or None.
        items: what was put into it as into a dict.
    """

    __slots__ = ("args", "items", "name", "state")

    def __init__(self, name: str, args: tuple[Any, ...] | None = None) -> None:
        self.name = name
        self.args = args
        self.state: Any = None
        self.items: dict[Any, Any] = {}

    def get(self, field: str) -> Any:
        """Return a field of its state, or None."""
        return self.state.get(field) if isinstance(self.state, dict) else None


def read(body: bytes, allowed: tuple[str, ...]) -> Any:
    """Return the value that a pickle describes.

    Args:
        allowed: modules whose classes may be named, each with its submodules.
    Raises:
        NoLayout: it names something else, uses an opcode that plain metadata does not need, or is broken.
    Cost: about 1 µs per opcode and 20 opcodes per tensor of a checkpoint: not on a loop.
    """
    try:
        return _Reader(body, allowed).load()
    except NoLayout:
        raise
    except Exception as exc:  # a broken pickle fails in every way there is
        raise NoLayout(f"the pickle is broken: {type(exc).__name__}: {exc}"[:200]) from exc


class _Reader(pickle._Unpickler):
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, body: bytes, allowed: tuple[str, ...]) -> None:
        super().__init__(io.BytesIO(body))
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Stub:
        if not any(module == each or module.startswith(each + ".") for each in self._allowed):
            raise NoLayout(f"the pickle names {module}.{name}"[:200])
        return Stub(f"{module}.{name}")

    def _refuse(self) -> NoReturn:
        raise NoLayout("the pickle uses an opcode that metadata does not need")

    def _call(self) -> None:
        args = self.stack.pop()
        called = self.stack[-1]
        if not isinstance(called, Stub) or called.args is not None or not isinstance(args, tuple):
            raise NoLayout("the pickle calls something that is no class")
        self.stack[-1] = Stub(called.name, args)

    def _build(self) -> None:
        state = self.stack.pop()
        built = self.stack[-1]
        if not isinstance(built, Stub) or built.args is None:
            raise NoLayout("the pickle gives a state to something that has none")
        built.state = state

    def _set_item(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self._put([key, value])

    def _set_items(self) -> None:
        self._put(self.pop_mark())

    def _put(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        into = target.items if isinstance(target, Stub) else target
        if not isinstance(into, dict):
            raise NoLayout("the pickle puts items into something that is no dict")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if isinstance(key, (Stub, *_KEYS)):
                into[key] = value

    def _append(self) -> None:
        value = self.stack.pop()
        self._extend([value])

    def _appends(self) -> None:
        self._extend(self.pop_mark())

    def _extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise NoLayout("the pickle appends to something that is no list")
        self.stack[-1].extend(values)

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **dict.fromkeys(range(256), _refuse),
        **{getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in _OPCODES},
        pickle.REDUCE[0]: _call,
        pickle.NEWOBJ[0]: _call,
        pickle.BUILD[0]: _build,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.APPEND[0]: _append,
        pickle.APPENDS[0]: _appends,
    }
