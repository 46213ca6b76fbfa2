"""Signatures checked once: the same bytes under the same key have one answer, however often they occur."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeagent.canonical import digest
from timeagent.errors import NotTrusted
from timeagent.signedtime import NONCE_CONTEXT, PAGE_CONTEXT, TimeFlags
from timeagent.trust import Keyring, Purpose

if TYPE_CHECKING:
    from timeagent.keys import Verifier
    from timeagent.signedtime import SignedTime
    from timeagent.units import Instant

ANSWERS_MAX: Final = 200_000
"""A bound on memory: about 60 MB."""


class EndedKey(str):
    """Why a signature that verifies is not accepted, where all that is wrong is when: the key did not count then."""

    __slots__ = ()


def refusal_code(forged: str, reason: str) -> str:
    """Return the code of a finding about a signature that is not accepted."""
    return "ended-key" if isinstance(reason, EndedKey) else forged


class PartialKeyring(Keyring):
    """The keys of some trust records, where others cannot be read: of a key that is not among them nothing is known."""


class Signatures:
    """The answers so far. May be shared by several audits: an answer depends on nothing but the bytes."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._answers: dict[tuple[bytes, bytes, bytes], bool] = {}
        self.checked = 0

    def verifies(self, key: Verifier, context: str, payload: bytes, signature: bytes) -> bool:
        """Whether the signature is this key's over the payload in this context."""
        name = (key.public, digest(context, payload), signature)
        answer = self._answers.get(name)
        if answer is None:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self.checked += 1
            answer = self._answers[name] = key.verifies(context, payload, signature)
        return answer

    def refuses(
        self,
        keyring: Keyring,
        identifier: bytes,
        purpose: Purpose,
        at: Instant,
        context: str,
        payload: bytes,
        signature: bytes,
    ) -> str | None:
        """Return why this signature is not accepted, or None if it is."""
        if isinstance(keyring, PartialKeyring) and keyring.node_of(identifier) is None:
            return None
        reason = keyring.refuses(identifier, purpose, at)
        if reason and not keyring.counts_ever(identifier, purpose):
            return reason
        try:
            key = keyring.verifier(identifier)
        except NotTrusted as problem:
            return problem.message
        if key is None or not self.verifies(key, context, payload, signature):
            return f"the signature by key {identifier.hex()} does not verify"
        return EndedKey(reason) if reason else None

    def refuses_time(self, keyring: Keyring, token: SignedTime, covered: bytes | None = None) -> str | None:
        """Return why this signed time is not accepted, or None if it is.

        ``covered``: the 32 bytes that it was made over, by the nonce door.
        """
        if (covered is not None) != bool(token.flags & TimeFlags.NONCE):
            return "the signed time came by the wrong door"
        if not token.status.usable:
            return f"the signed time has status {token.status.name.lower()}"
        context = PAGE_CONTEXT if covered is None else NONCE_CONTEXT
        return self.refuses(
            keyring,
            token.key_id,
            Purpose.TIME,
            token.midpoint_ns,
            context,
            token.body() + (covered or b""),
            token.signature,
        )


def misattributed(keyring: Keyring | None, token: SignedTime, node: str) -> str | None:
    """Return why a signed time is not that of the node that is said to have made it, or None."""
    owner = keyring.node_of(token.key_id) if keyring else None
    return None if owner in (None, node) else f"the signed time is of node {owner}, not of {node}"
