"""Roughtime packets: requests, answers and their verification, delegations. Everything of the library ends here.

Versions are RFC 10049 and the drafts that are still served; which strings, hashes and tags a version has is the
library's knowledge. Times are whole seconds on the wire and nanoseconds outside this module's packets. The library
checks signatures, Merkle paths and the delegation's validity; this module adds what it lets pass, silences its log
(a stranger's datagram must not write to it), and turns what it raises into one error.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from roughly import server as library
from roughly import tags
from roughly.client import VerifiableResponse, build_request, offered_versions
from roughly.errors import RoughtimeError, VerificationError
from roughly.models import Certificate, Delegation, Message, Packet
from roughly.shared import ProtocolProfile, get_by_tag

from ..errors import Damaged
from ..keys import Signer, Verifier
from ..units import INSTANT_MAX, SECOND, TimeInterval

RFC_VERSION: Final = 1
VERSIONS: Final = (RFC_VERSION, 0x80000008, 0x8000000B, 0x8000000C)
"""RFC 10049, and the drafts 08, 11 and 12 to 19 (which share a number). In the order in which a request lists them."""

NONCE_BYTES: Final = 32
REQUEST_BYTES: Final = 1036
"""A message of 1024 bytes behind a header of 12, as the RFC asks: no answer is larger than its request."""
PACKET_BYTES_MAX: Final = 4096
"""More than any packet of either side needs."""

_MAGIC: Final = b"ROUGHTIM"
_PATH_MAX: Final = 32
_NODE_BYTES: Final = 32
_UNREADABLE: Final = (RoughtimeError, ValueError, struct.error)
"""What the library raises for bytes that are no packet."""

logging.getLogger("roughly").setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True)
class RoughtimeAnswer:
    """What a verified answer says."""

    version: int
    midpoint_s: int
    radius_s: int
    delegated_until_s: int

    @property
    def interval(self) -> TimeInterval:
        """True time lay in it at some instant between the sending of the request and the arrival of the answer."""
        return TimeInterval((self.midpoint_s - self.radius_s) * SECOND, (self.midpoint_s + self.radius_s) * SECOND)


def chained_nonce(answer: bytes, rand: bytes) -> bytes:
    """Return the nonce of the request that follows an answer (RFC 10049, section 8): whoever has it saw the answer."""
    return hashlib.sha512(answer + rand).digest()[:NONCE_BYTES]


def make_request(public: bytes, nonce: bytes, versions: Sequence[int] = VERSIONS) -> bytes:
    """Return a request packet for the server with this long-term key."""
    assert len(nonce) == NONCE_BYTES
    packet = build_request(sorted(versions), public, nonce)
    padding = packet.message.tags[-1]  # the library pads to 1024 bytes with the header, the RFC without it
    padding.value += bytes(REQUEST_BYTES - Packet.header_size - packet.message.size())
    return packet.dump()


def nonce_of(packet: bytes) -> bytes | None:
    """Return the nonce of a request or an answer, or None where there is none to be read."""
    try:
        return bytes(get_by_tag(Packet.from_bytes(packet).message.tags, tags.NONC).value)
    except _UNREADABLE:
        return None


def open_answer(public: bytes, request: bytes, answer: bytes) -> RoughtimeAnswer:
    """Verify an answer to a request by the server's long-term key. Raises Damaged, saying what is wrong.

    The codes: ``roughtime-malformed``; ``roughtime-signature``: not by this server, or over another request;
    ``roughtime-delegation``: the midpoint is not within the validity of the key that signed it.
    """
    try:
        response = VerifiableResponse.from_packet(raw=answer, request=request)
        _check_form(request, response)
        response.verify(public)
    except VerificationError as problem:
        codes = {"key-age": "roughtime-delegation", "radius": "roughtime-malformed", "versions": "roughtime-malformed"}
        raise Damaged(codes.get(problem.reason, "roughtime-signature"), f"{problem}") from None
    except (*_UNREADABLE, OverflowError) as problem:
        raise Damaged("roughtime-malformed", f"the answer is no Roughtime answer to this request: {problem}") from None
    said, delegated = response.signed_response, response.certificate.delegation
    return RoughtimeAnswer(response.version, said.midpoint, said.radius, delegated.max_time)


def _check_form(request: bytes, response: VerifiableResponse) -> None:
    """Refuse (ValueError) what the library lets pass."""
    if not response.packet.framed:
        raise ValueError("the answer has no header")
    if not request.startswith(_MAGIC):
        raise ValueError("the request has no header")
    path = response.path
    if len(path) > _PATH_MAX or any(len(node) != _NODE_BYTES for node in path):
        raise ValueError(f"a path of {len(path)} nodes, not all of 32 bytes")
    if response.index >> len(path):
        raise ValueError(f"index {response.index} lies outside a tree of depth {len(path)}")
    said = response.signed_response
    if not 0 <= said.midpoint * SECOND <= INSTANT_MAX:
        raise ValueError(f"a midpoint of {said.midpoint} s is not an instant")


# ---- answering ----


@dataclass(frozen=True, slots=True)
class OnlineKey:
    """A key that signs answers for a stretch of time, and the long-term key's word that it may."""

    long_term: bytes
    signer: Signer
    from_s: int
    until_s: int
    """Both inclusive."""
    certificates: Mapping[bytes, Certificate]
    """By context: each version has the same certificate signed in the context of its own."""

    def encoded(self) -> list[bytes]:
        return [each.to_bytes() for each in self.certificates.values()]


_CONTEXTS: Final = tuple({ProtocolProfile.from_version(version).delegation_context for version in VERSIONS})


def delegate(long_term: Signer, signer: Signer, from_s: int, until_s: int) -> OnlineKey:
    """Return an online key that the long-term key vouches for, from a second to a second, both inclusive."""
    assert from_s <= until_s
    said = Delegation(public_key=signer.public, min_time=from_s, max_time=until_s)
    raw = said.to_bytes()
    signed = {context: Certificate(said, long_term.sign_exactly(context + raw)) for context in _CONTEXTS}
    return OnlineKey(long_term.public, signer, from_s, until_s, signed)


def open_online_key(long_term: bytes, signer: Signer, certificates: Sequence[bytes]) -> OnlineKey:
    """Read the certificates of an online key. Raises Damaged unless they are good, one for each version."""
    try:
        verifier, by_context = Verifier(long_term), {}
        for raw in certificates:
            read = Certificate.from_bytes(raw, profile=ProtocolProfile.from_version(RFC_VERSION))
            body = get_by_tag(Message.from_bytes(raw).tags, tags.DELE).value
            context = next((each for each in _CONTEXTS if verifier.verifies_exactly(each + body, read.signature)), None)
            if context is None:
                raise ValueError("a certificate is not signed by the long-term key")
            by_context[context] = read
    except _UNREADABLE as problem:
        raise Damaged("bad-delegation", f"{problem}") from None
    if set(by_context) != set(_CONTEXTS):
        raise Damaged("bad-delegation", "certificates for some versions are missing")
    said = by_context[_CONTEXTS[0]].delegation
    if any(each.delegation != said for each in by_context.values()):
        raise Damaged("bad-delegation", "the certificates are about several keys, or several times")
    if said.public_key != signer.public:
        raise Damaged("bad-delegation", "the certificates are about another key")
    return OnlineKey(long_term, signer, said.min_time, said.max_time, by_context)


def answer_batch(online: OnlineKey, requests: Sequence[bytes], midpoint_s: int, radius_s: int) -> list[bytes | None]:
    """Return an answer to each request, or None for what is not answered: one signature for all of one version.

    Never raises for what a stranger sends, and no answer is longer than its request.
    """
    public = SimpleNamespace(public_bytes_raw=lambda: online.long_term)
    unframed = online.certificates[_CONTEXTS[0]]  # never shown: those who want it are not answered
    # What the library calls a server: the keys, the versions, and what time it is.
    server: Any = SimpleNamespace(
        long_term_key=SimpleNamespace(public_key=lambda: public),
        delegated_key=SimpleNamespace(sign=online.signer.sign_exactly),
        certificates=library.CertificateStore(dict(online.certificates), unframed, online.until_s),
        versions=VERSIONS,
        get_time=lambda: midpoint_s,
        radius=radius_s,
        grease=False,
        grease_probability=0.0,
    )
    asked = [index for index, request in enumerate(requests) if _is_question(request)]
    try:
        made = library.handle_batch(server, [requests[index] for index in asked])
    except Exception:  # noqa: BLE001 - whatever is in one datagram must not cost the others their answers
        alone = asked if len(asked) > 1 else []
        made = [answer_batch(online, [requests[index]], midpoint_s, radius_s)[0] for index in alone] or [None]
    answers = dict(zip(asked, made, strict=True))
    return [answers.get(index) for index in range(len(requests))]


def _is_question(request: bytes) -> bool:
    """Whether it is a request with a header, of a usual size, for a version of ours.

    The library answers Google's unframed dialect whatever versions it is given; nobody here verifies those answers.
    """
    if not (request.startswith(_MAGIC) and len(request) <= PACKET_BYTES_MAX):
        return False
    try:
        offered = offered_versions(Packet.from_bytes(request))
    except _UNREADABLE:
        return False
    return 0 < len(offered) <= _PATH_MAX and any(version in VERSIONS for version in offered)
