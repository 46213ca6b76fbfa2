"""Keys for simulations: a hash in the place of Ed25519, a hundred times as fast, over the same bytes.

Who has the public half can sign: nobody in a simulation forges. Everything else, contexts, ids, key records and the
refusal of what was not signed, is the production code's. A share of the seeds runs with real keys.
"""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from appliance.formats.framing import Kind
from appliance.node.records import RegisterRecord, Registers
from auditor.evidence.signatures import Signatures
from timeagent.canonical import signed_bytes
from timeagent.keys import Signer, Verifier, key_id
from timeagent.trust import Keyring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from timeagent.trust import KeyEntry


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


_OPENED_MAX = 256
_opened: dict[tuple[bytes, bytes, Kind, int, bytes], RegisterRecord] = {}
"""Records by their bytes, and by all else that their verdict depends on: it is worked out once for all runs."""


class FastRegisters(Registers):
    """The records of one cluster, whose keys are fast ones. Each process reads them; what comes of that is shared."""

    def _opened(self, kind: Kind, data: bytes, path: str, number: int) -> RegisterRecord:
        key = (self.cluster_id, self._root_key.id, kind, number, data)
        known = _opened.get(key)
        if known is None:
            if len(_opened) >= _OPENED_MAX:
                _opened.clear()
            known = _opened[key] = super()._opened(kind, data, path, number)
        return known

    def keyring(self, number: int) -> Keyring:
        if number not in self._keyrings:
            self._keyrings[number] = _keyring(self.trust(number).keys)
        return self._keyrings[number]


class FastSignatures(Signatures):
    """What the auditor asks about signatures."""

    def verifies(self, key: Verifier, context: str, payload: bytes, signature: bytes) -> bool:
        self.checked += 1
        return signature == _signature(key.public, context, payload)
