"""`python -m vfs.keeper --options FILE`: started by `foremount mount`, not by hand."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys

from vfs import rundir
from vfs.keeper import service
from vfs.keeper.secrecy import forbid_core_dumps

LOG_BYTES_MAX = 1 << 20


def main(arguments: list[str]) -> int:
    """Run one keeper; return its exit status."""
    if len(arguments) != 2 or arguments[0] != "--options":
        print("usage: python -m vfs.keeper --options FILE", file=sys.stderr)
        return 2
    forbid_core_dumps()
    options = service.Options.load(arguments[1])
    service.close_inherited({options.ready_fd})
    os.chdir("/")
    os.umask(0o022)
    _log_to(rundir.RunDir(options.run_dir).log("keeper"), foreground=options.foreground)
    try:
        return service.Keeper(options).run()
    except Exception:
        logging.getLogger("vfs.keeper").exception("the keeper ends by an error of its own")
        return 1


def _log_to(path: str, *, foreground: bool) -> None:
    rotating = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES_MAX, backupCount=1)
    handlers: list[logging.Handler] = [rotating]
    if foreground:
        handlers.append(logging.StreamHandler())
    logging.basicConfig(level=logging.INFO, handlers=handlers, format="%(asctime)s %(levelname)s %(message)s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
