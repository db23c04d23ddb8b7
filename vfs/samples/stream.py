"""One (step, rank) group on its way from a node to an agent: envelopes and the bytes that each announces.

Pure: no I/O, no clock. A frame is a u32 little-endian length, a msgpack `Envelope`, and `Envelope.size` bytes. Samples come
in the order in which they are ready. A frame of length 0 ends the group: a stream that ends without one was cut.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
import xxhash

from vfs.errors import WrongAnswer
from vfs.samples.model import Envelope

CONTENT_TYPE = "application/vnd.foremount.samples"
ENVELOPE_BYTES_MAX = 64 << 10
_LENGTH = struct.Struct("<I")
END = _LENGTH.pack(0)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def head(envelope: Envelope) -> bytes:
    """Return what goes before the bytes of one sample."""
    body = _encoder.encode(envelope)
    assert len(body) <= ENVELOPE_BYTES_MAX, "an identity is a few hundred bytes"
    return _LENGTH.pack(len(body)) + body


def digest_of(body: bytes | bytearray | memoryview) -> str:
    """Return the digest of a sample's bytes as an envelope states it."""
    return xxhash.xxh3_128_hexdigest(body)


class Decoder:
    """Takes a stream apart as it arrives: pieces in; envelopes, bytes and proofs out.

    Invariants: `_left` bytes of the sample `_current` have still to come; `_held` holds less than one whole length and
    envelope; after `ended` nothing more is accepted.

    Args:
        name: of the stream, for messages.
    """

    def __init__(self, name: str) -> None:
        self.ended = False
        self._name = name
        self._held = bytearray()
        self._current: Envelope | None = None
        self._left = 0
        self._hash = xxhash.xxh3_128()

    def feed(self, piece: bytes | memoryview) -> Iterator[Envelope | memoryview]:
        """Yield what `piece` completes: an envelope, then its bytes in pieces of any size, then the next envelope.

        The last piece of a sample is yielded only once the digest of all of them holds. Must be run to its end.

        Raises:
            WrongAnswer: this is no such stream, or the bytes are not those of the envelope.
        """
        rest = memoryview(piece)
        while True:
            if self._current is not None:
                taken, rest = rest[: self._left], rest[self._left :]
                self._left -= len(taken)
                self._hash.update(taken)
                if not self._left:
                    self._check_digest(self._current)
                    self._current = None
                if len(taken):
                    yield taken
                if self._current is not None:
                    return
            envelope, rest = self._next_envelope(rest)
            if envelope is None:
                return
            self._current, self._left, self._hash = envelope, envelope.size, xxhash.xxh3_128()
            yield envelope

    def finish(self) -> None:
        """Check that the group is complete; call at the end of the stream.

        Raises:
            WrongAnswer: it was cut.
        """
        if not self.ended:
            raise WrongAnswer(self._name, "ends in the middle of a group")

    def _next_envelope(self, rest: memoryview) -> tuple[Envelope | None, memoryview]:
        """Return the envelope that `rest` completes and what follows it; (None, …) where it takes more, or none follows."""
        if self.ended:
            if len(rest):
                raise WrongAnswer(self._name, "goes on after its end")
            return None, rest
        rest = self._hold(rest, _LENGTH.size)
        if len(self._held) < _LENGTH.size:
            return None, rest
        (length,) = _LENGTH.unpack_from(self._held)
        if length == 0:
            self.ended = True
            self._held.clear()
            return self._next_envelope(rest)
        if length > ENVELOPE_BYTES_MAX:
            raise WrongAnswer(self._name, f"announces an envelope of {length} bytes")
        rest = self._hold(rest, _LENGTH.size + length)
        if len(self._held) < _LENGTH.size + length:
            return None, rest
        try:
            envelope = _decoder.decode(memoryview(self._held)[_LENGTH.size :])
        except (msgspec.DecodeError, msgspec.ValidationError) as exc:
            raise WrongAnswer(self._name, f"holds no envelope: {exc}") from exc
        if envelope.size < 0:
            raise WrongAnswer(self._name, "announces a sample of negative size")
        self._held = bytearray()
        return envelope, rest

    def _hold(self, rest: memoryview, size: int) -> memoryview:
        """Move bytes from `rest` until `size` are held; return what is left."""
        missing = max(0, size - len(self._held))
        self._held += rest[:missing]
        return rest[missing:]

    def _check_digest(self, envelope: Envelope) -> None:
        if self._hash.hexdigest() != envelope.digest:
            where = f"step {envelope.step}, rank {envelope.rank}, slot {envelope.slot}"
            raise WrongAnswer(self._name, f"does not hold the bytes that it announces for {where}")
