"""Which parser a file's name promises.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable

from vfs.checkpoints import safetensors
from vfs.checkpoints.layout import Layout, Needs

_BY_ENDING: dict[str, Callable[[int], Needs[Layout]]] = {
    ".safetensors": safetensors.layout,
}


def recognise(path: str, size: int) -> Needs[Layout] | None:
    """Return a parser for a file of that name and size, or None: its bytes have no layout that could be known.

    The parser looks at the bytes before it believes the name: `NoLayout` is what a wrong guess costs.
    """
    name = path.rpartition("/")[2]
    ending = name[name.rfind(".") :].lower() if "." in name else ""
    make = _BY_ENDING.get(ending)
    return make(size) if make is not None and size > 0 else None
