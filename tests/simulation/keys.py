"""Keys for simulations: a hash in the place of Ed25519, a hundred times as fast, over the same bytes.

Who has the public half can sign: nobody in a simulation forges. Everything else, contexts, ids, key records and the
refusal of what was not signed, is the production code's. A share of the seeds runs with real keys.
"""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from appliance.formats.framing import Kind
from appliance.formats.policy import Policy, check_policy
from appliance.registers import Registers
from auditor.evidence.signatures import Signatures
from timeagent.canonical import signed_bytes
from timeagent.keys import Signer, Verifier, key_id
from timeagent.trust import Keyring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from appliance.formats.shardmap import ShardMap
    from timeagent.trust import KeyEntry, TrustRecord


@cache
def _begun(public: bytes) -> hashlib.blake2b:
    """Return the hash that has taken in the key: a copy of it takes half as long as a new one."""
    return hashlib.blake2b(key=public)


def _signature(public: bytes, context: str, payload: bytes) -> bytes:
    running = _begun(public).copy()
    running.update(signed_bytes(context, payload))
    return running.digest()


class FastVerifier(Verifier):
    """The public half."""

    def __init__(self, public: bytes) -> None:
        self.public = public
        self.id = key_id(public)

    def verifies(self, context: str, payload: bytes, signature: bytes) -> bool:
        return signature == _signature(self.public, context, payload)


class FastSigner(Signer):
    """The private half."""

    def __init__(self, seed: bytes) -> None:
        self.public = hashlib.blake2b(seed, digest_size=32).digest()
        self.id = key_id(self.public)

    def sign(self, context: str, payload: bytes) -> bytes:
        return _signature(self.public, context, payload)

    def verifier(self) -> Verifier:
        return FastVerifier(self.public)


class FastKeyring(Keyring):
    """The keys of a trust record, all of them fast ones."""

    def __init__(self, keys: Iterable[KeyEntry]) -> None:
        super().__init__(keys)
        self._verifiers = {identifier: FastVerifier(entry.public) for identifier, entry in self._entries.items()}


@lru_cache(maxsize=64)
def _keyring(keys: tuple[KeyEntry, ...]) -> FastKeyring:
    return FastKeyring(keys)


@lru_cache(maxsize=64)
def _checked(policy: Policy) -> Policy:
    return check_policy(policy)


_OPENED_MAX = 256
_opened: dict[tuple[bytes, bytes, Kind, int, bytes], Any] = {}
"""Records by their bytes, and by all else that their verdict depends on: it is worked out once for all runs."""


class FastRegisters(Registers):
    """The records of one cluster, whose keys are fast ones. Each process reads them; what comes of that is shared."""

    def _opened[R: (Policy, TrustRecord, ShardMap)](
        self, kind: Kind, number: int, form: type[R], data: bytes, path: str
    ) -> R:
        key = (self.cluster_id, self._root_key.id, kind, number, data)
        known: R | None = _opened.get(key)
        if known is None:
            if len(_opened) >= _OPENED_MAX:
                _opened.clear()
            known = _opened[key] = super()._opened(kind, number, form, data, path)
        return known

    def policy(self, number: int) -> Policy:
        if number not in self._policies:
            self._policies[number] = _checked(self._read(Kind.POLICY, number, Policy))
        return self._policies[number]

    def keyring(self, number: int) -> Keyring:
        if number not in self._keyrings:
            self._keyrings[number] = _keyring(self.trust(number).keys)
        return self._keyrings[number]


class FastSignatures(Signatures):
    """What the auditor asks about signatures."""

    def verifies(self, key: Verifier, context: str, payload: bytes, signature: bytes) -> bool:
        self.checked += 1
        return signature == _signature(key.public, context, payload)
