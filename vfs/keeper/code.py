"""Which installation the children are started from: an interpreter, and where it finds the package.

An upgrade is asked for with a file in the run directory and SIGUSR2: what `foremount upgrade` of the new installation writes,
the keeper of the old one reads. Its fields are therefore only ever added to.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from dataclasses import asdict, dataclass

import vfs


@dataclass(frozen=True, slots=True)
class Code:
    """One installation.

    Attributes:
        python: absolute path of its interpreter.
        pythonpath: PYTHONPATH of its processes, "" where it is installed.
        version: of the package.
    """

    python: str
    pythonpath: str
    version: str

    def command(self, module: str) -> list[str]:
        """Return the start of the command line that runs a module of it."""
        return [self.python, "-P", "-m", module]

    def environ(self) -> dict[str, str]:
        """Return the environment of its processes: they find this very package, and keep its bytecode.

        A worker that is started again under waiting readers must not compile its modules first: 0.25 s of their wait.
        """
        environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
        return environ | {"PYTHONPATH": self.pythonpath} if self.pythonpath else environ


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request for an upgrade; `id` tells its outcome from that of an earlier one."""

    id: str
    code: Code


def own() -> Code:
    """Return the installation that runs this."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    known = os.environ.get("PYTHONPATH", "")
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) and root not in known.split(os.pathsep):
        known = f"{root}{os.pathsep}{known}" if known else root
    return Code(sys.executable, known, vfs.__version__)


def child_environ() -> dict[str, str]:
    """Return the environment of processes of this installation."""
    return own().environ()


def ask(path: str, wanted: Wanted) -> None:
    """Write the request down; the keeper is to be sent SIGUSR2 then."""
    beside = f"{path}.{os.getpid()}.new"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(asdict(wanted), file)
    os.rename(beside, path)


def asked(path: str) -> Wanted:
    """Return the request.

    Raises:
        OSError: there is none.
        ValueError: it is none that we understand.
    """
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    try:
        code = document["code"]
        return Wanted(str(document["id"]), Code(str(code["python"]), str(code["pythonpath"]), str(code["version"])))
    except (KeyError, TypeError) as exc:
        raise ValueError(f"{path} asks for no upgrade: {exc!r}") from exc
