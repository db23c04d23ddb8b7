"""For training code: tell the controller of foresight what will be read (docs/foresight.md).

    told = Training("run7", controllers=["https://controller:9470"], tokens="/etc/foremount/foresight.tokens")
    told.job_submitted(world_size=2048, evaluate_every=1000, evaluation_sites=["eval"])
    told.evaluation_scheduled("mmlu", step=12000, site="eval")

A mount tells of saves, closed files and commits by itself. Needs no mount and no thread: each call is one request, to one
controller after another until one has written the event down; what is sent twice counts once.
"""

from __future__ import annotations

import http.client
import itertools
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from vfs import tls
from vfs.config import is_plain_elsewhere
from vfs.errors import ForemountError, InvalidConfig, Unavailable
from vfs.foresight.model import (
    Anomaly,
    CheckpointDeleted,
    EvaluationCancelled,
    EvaluationResult,
    EvaluationScheduled,
    EvaluationStarted,
    Event,
    Happening,
    HintCancelled,
    HintId,
    HotFiles,
    HotRange,
    JobName,
    JobSubmitted,
    Restarted,
    SaveBegun,
)
from vfs.foresight.signing import parse_secrets, refusal_of, signed
from vfs.model import LakePath, SiteName
from vfs.unixhttp import UnixConnection

TIMEOUT_S = 10.0


class Training:
    """One job's line to its controllers. Events of one object are taken in in the order in which they are told.

    Args:
        job: its name; a mount that notices a save calls the job as the directory above the checkpoint's.
        controllers: "https://host:port", or the path of an agent's `foresight.sock`.
        tokens: file of lines "NAME SECRET"; the first one signs. Not needed for a socket.
        files: PEM files: what we show them, and whose certificates we believe.
    """

    def __init__(
        self,
        job: str,
        controllers: Sequence[str],
        *,
        tokens: str = "",
        files: tls.Files = tls.NO_FILES,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._job = JobName(job)
        self._controllers = list(controllers)
        self._timeout_s = timeout_s
        self._tls = tls.Client(files, "certificate")
        self._source = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._secrets: dict[str, bytes] = {}
        if tokens:
            with open(tokens, encoding="utf-8") as file:
                self._secrets = parse_secrets(file.read(), tokens)

    def job_submitted(self, world_size: int, **fields: Any) -> None:
        """A job will start; `fields` are those of `vfs.foresight.model.JobSubmitted`."""
        self.tell(msgspec.convert({"type": "job_submitted", "world_size": world_size, **fields}, JobSubmitted))

    def save_begun(self, step: int, path: str) -> None:
        """The first byte of a checkpoint is about to be written."""
        self.tell(SaveBegun(step=step, path=LakePath(path)))

    def evaluation_scheduled(
        self, evaluation: str, step: int, site: str, *, path: str = "", starts_in_s: float = 0.0, urgent: bool = False
    ) -> None:
        """An evaluation will read the checkpoint of a step."""
        self.tell(
            EvaluationScheduled(
                evaluation=evaluation,
                step=step,
                site=SiteName(site),
                path=LakePath(path),
                starts_in_s=starts_in_s,
                urgent=urgent,
            )
        )

    def evaluation_started(self, evaluation: str, step: int, site: str) -> None:
        """It reads from now on."""
        self.tell(EvaluationStarted(evaluation=evaluation, step=step, site=SiteName(site)))

    def evaluation_result(self, evaluation: str, step: int, site: str) -> None:
        """It is done: its copies are not needed any more."""
        self.tell(EvaluationResult(evaluation=evaluation, step=step, site=SiteName(site)))

    def evaluation_cancelled(self, evaluation: str, step: int, site: str) -> None:
        """It will not take place."""
        self.tell(EvaluationCancelled(evaluation=evaluation, step=step, site=SiteName(site)))

    def restarted(self, step: int, *, path: str = "", world_size: int = 0, data_mix: str = "") -> None:
        """The job goes on from a checkpoint."""
        self.tell(Restarted(step=step, path=LakePath(path), world_size=world_size, data_mix=data_mix))

    def anomaly(self, step: int, *, loss_spike: float = 0.0, gradient_norm: float = 0.0) -> None:
        """Training looks wrong, by so many standard deviations."""
        self.tell(Anomaly(step=step, loss_spike=loss_spike, gradient_norm=gradient_norm))

    def set_replication_hints(
        self, path: str, files: Sequence[HotRange], *, site: str, starts_in_s: float = 0.0, ttl_s: float = 3600.0
    ) -> None:
        """Many will read the same files, or ranges of them, at once; `readers` of each says how many."""
        self.tell(
            HotFiles(path=LakePath(path), site=SiteName(site), ranges=tuple(files), starts_in_s=starts_in_s, ttl_s=ttl_s)
        )

    def checkpoint_deleted(self, path: str) -> None:
        """A checkpoint was deleted at its origin: its copies go now, and not only when the controller finds it gone."""
        self.tell(CheckpointDeleted(path=LakePath(path)))

    def hint_cancelled(self, hint: str, why: str = "") -> None:
        """Somebody takes a hint back, and its copies with it."""
        self.tell(HintCancelled(hint=HintId(hint), why=why))

    def tell(self, what: Happening) -> None:
        """Say something, and return when a controller has written it down.

        Raises:
            Unavailable: none does; what was told may have arrived. Told again by another call, it is another event.
            Denied, InvalidConfig: a controller refuses it.
        """
        with self._lock:
            event = Event(
                id=uuid.uuid4().hex,
                job=self._job,
                what=what,
                source=self._source,
                seq=next(self._numbers),
                at_ns=time.time_ns(),
            )
            self._post("/v1/events", msgspec.json.encode([event]))

    def order(self, target: str, body: dict[str, Any]) -> None:
        """Give an order that is no event of the job. Raises as `tell`."""
        self._post(target, msgspec.json.encode(body))

    def ask(self, target: str) -> dict[str, Any]:
        """Return what the first controller that answers says at `target`, as `docs/foresight.md` lists them."""
        return self._try_all("GET", target, b"")

    def _post(self, target: str, body: bytes) -> None:
        self._try_all("POST", target, body)

    def _try_all(self, method: str, target: str, body: bytes) -> dict[str, Any]:
        trouble: ForemountError = Unavailable("controller", "none is named", "name one")
        for _ in range(len(self._controllers)):
            try:
                return self._request(self._controllers[0], method, target, body)
            except Unavailable as exc:
                trouble = exc
                self._controllers.append(self._controllers.pop(0))
        raise trouble

    def _request(self, controller: str, method: str, target: str, body: bytes) -> dict[str, Any]:
        connection = self._connection(controller)
        headers = {"Content-Type": "application/json", **signed(self._secrets, method, target, body)}
        try:
            connection.request(method, target, body or None, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as exc:
            raise Unavailable(controller, f"does not answer: {exc}") from exc
        finally:
            connection.close()
        if response.status != 200:
            raise refusal_of(controller, response.status, answer)
        found: dict[str, Any] = msgspec.json.decode(answer)
        return found

    def _connection(self, controller: str) -> http.client.HTTPConnection:
        if controller.startswith("/"):
            return UnixConnection(controller, self._timeout_s)
        if is_plain_elsewhere(controller):
            raise InvalidConfig(controller, "is another host, and not encrypted", "write https://")
        parts = urlsplit(controller)
        host, timeout_s = parts.hostname or "", self._timeout_s
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=self._tls.context())
        return http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
