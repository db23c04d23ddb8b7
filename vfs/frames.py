"""Calls and answers between two of our processes on a Unix stream socket, whatever they are about.

Pure: no I/O, no clock. Frames are a u32 little-endian length and a msgpack body. One side asks, the other answers with the
same `id`, in any order. What may be said on a line is its `Dialect`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from vfs.errors import Failure, ForemountError
from vfs.units import encode_unit
from vfs.usage import NOBODY, CallerFacts, Cause

CallT = TypeVar("CallT")
AnswerT = TypeVar("AnswerT")
MessageT = TypeVar("MessageT")
FRAME_BYTES_MAX = 16 << 20
_LENGTH = struct.Struct("<I")


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The call's expected failure: an answer of every dialect."""

    failure: Failure


class Request(msgspec.Struct, Generic[CallT], frozen=True, array_like=True):
    """A call with the number that its answer will carry; id 0 is not answered.

    Attributes:
        deadline_s: after which nobody waits for the answer any more; 0: not answered anyway.
        caller: the process that asks; `NOBODY` where no policy rule wants to know.
    """

    id: int
    call: CallT
    deadline_s: float = 0.0
    caller: CallerFacts = NOBODY


class Response(msgspec.Struct, Generic[AnswerT], frozen=True, array_like=True):
    """The answer to the request of this id; with id 0 the agent tells something of its own accord.

    Attributes:
        causes: what it took its time for, seconds, as far as the agent knows.
    """

    id: int
    answer: AnswerT
    causes: Mapping[Cause, float] = {}


class BrokenFrame(ForemountError):
    """The peer sent something that is no message."""


class Dialect(Generic[CallT, AnswerT]):
    """What is said on one line.

    Args:
        calls, answers: the tagged structs that they are, as unions; `Failed` is one of the answers.
    """

    def __init__(self, calls: Any, answers: Any) -> None:
        self._requests: msgspec.msgpack.Decoder[Request[CallT]] = msgspec.msgpack.Decoder(Request[calls])
        self._responses: msgspec.msgpack.Decoder[Response[AnswerT]] = msgspec.msgpack.Decoder(Response[answers])

    def request(self, number: int, call: CallT, deadline_s: float = 0.0, caller: CallerFacts = NOBODY) -> bytes:
        """Return a call as one frame."""
        return _frame(Request(number, call, deadline_s, caller))

    def response(self, number: int, answer: AnswerT | Failed, causes: Mapping[Cause, float] | None = None) -> bytes:
        """Return an answer as one frame."""
        return _frame(Response(number, answer, causes or {}))

    def decode_request(self, body: bytes) -> Request[CallT]:
        """Return the request in a frame's body.

        Raises:
            BrokenFrame: it is none.
        """
        return _decode(self._requests, body)

    def decode_response(self, body: bytes) -> Response[AnswerT]:
        """Return the response in a frame's body.

        Raises:
            BrokenFrame: it is none.
        """
        return _decode(self._responses, body)


class FrameBuffer:
    """Turns a byte stream into frame bodies: bytes in, bodies out.

    Invariant: holds less than one frame between calls.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, received: bytes) -> list[bytes]:
        """Return the bodies that are complete now, in order.

        Raises:
            BrokenFrame: a length over `FRAME_BYTES_MAX`; the connection can't be used any more.
        """
        self._pending += received
        bodies = []
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > FRAME_BYTES_MAX:
                raise BrokenFrame("frame", f"announces {length} bytes, {FRAME_BYTES_MAX} are allowed")
            if len(self._pending) < _LENGTH.size + length:
                break
            bodies.append(bytes(self._pending[_LENGTH.size : _LENGTH.size + length]))
            del self._pending[: _LENGTH.size + length]
        return bodies


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_unit)


def _frame(message: msgspec.Struct) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def _decode(decoder: msgspec.msgpack.Decoder[MessageT], body: bytes) -> MessageT:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as exc:
        raise BrokenFrame("frame", f"holds no message: {exc}") from exc
