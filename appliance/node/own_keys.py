"""This node's keys, as a process uses them: what a rotation puts in their place, and whether the cluster believes them.

A rotation publishes a trust record in which the earlier keys have an end, and then puts the next key files beside the
earlier ones. Every process looks for both each second (``record_watch.py``), and signs with the next key as soon as the
record that it read knows it. What has no next key signs up to the end and nothing after it (timeagent/keys.py).
"""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Lock
from typing import Final

from timeagent.clock import NodeTime
from timeagent.errors import BadTime, NotTrusted, TenureError
from timeagent.keys import KeyInUse, Purpose, Signer, fingerprint, is_own_key, key_path, load_key_file
from timeagent.trust import Keyring
from timeagent.units import DAY, Instant, Span, rfc3339

from .records import Registers
from .settings import Settings

_log = logging.getLogger(__name__)

NOTICE_NS: Final = 7 * DAY
"""So long before its end a key without a next one is spoken of."""


class OwnKeys:
    """The keys of one node in one process. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """Read the newest key files; a Roughtime key need not be there. Raises NotTrusted, BadConfiguration."""
        self._directory = settings.directory
        self.node = settings.node
        self._lock = Lock()
        self._keyring: Keyring | None = None
        self._files: dict[Purpose, Path] = {}
        self._told: dict[Purpose, str] = {}
        self.keys: dict[Purpose, KeyInUse] = {}
        """By purpose: those that are on this machine."""
        for purpose in Purpose:
            path = key_path(self._directory, purpose)
            if purpose is not Purpose.ROUGHTIME or path.exists():
                self._files[purpose] = path
                self.keys[purpose] = KeyInUse(load_key_file(path, self._directory))
        self.time, self.witness, self.tls = (self.keys[each] for each in (Purpose.TIME, Purpose.WITNESS, Purpose.TLS))

    def is_own(self, identifier: bytes) -> bool:
        """Whether a time is signed by this node: by the key in use, an earlier one, or the next. A local disk."""
        return is_own_key(self._directory, Purpose.TIME, identifier)

    def look(self, keyring: Keyring, at: Instant) -> None:
        """Take up what a rotation has made, and hear until when each key counts. A local disk; never raises.

        ``keyring``: of the newest trust record; ``at``: now, or 0 where that is not known.
        """
        with self._lock:
            self._keyring = keyring
            for purpose, key in self.keys.items():
                signer = self._next(purpose, keyring, at)
                key.use(signer or key.in_use, keyring.end_ns((signer or key.in_use).id))
                self._tell(purpose, key, at)

    def _next(self, purpose: Purpose, keyring: Keyring, at: Instant) -> Signer | None:
        """Return the key of a newer file, once the cluster believes it."""
        path = key_path(self._directory, purpose)
        if path == self._files[purpose]:
            return None
        try:
            signer = load_key_file(path, self._directory)
        except TenureError as problem:
            self._log_once(purpose, f"key-not-read purpose={purpose} code={problem.code} reason={problem.message}")
            return None
        if keyring.node_of(signer.id) != self.node or (at and keyring.refuses(signer.id, purpose, at)):
            return None
        self._files[purpose] = path
        _log.warning("key-taken-up purpose=%s key=%s", purpose, fingerprint(signer.public))
        return signer

    def _tell(self, purpose: Purpose, key: KeyInUse, at: Instant) -> None:
        """Log once that a key ends soon, and once that it has ended."""
        end = key.end_ns
        if end is None or not at or end - at > NOTICE_NS:
            self._told.pop(purpose, None)
            return
        event = "key-ends" if at < end else "key-ended"
        name = fingerprint(key.in_use.public)
        self._log_once(purpose, f"{event} purpose={purpose} key={name} at={rfc3339(end)}")

    def _log_once(self, purpose: Purpose, words: str) -> None:
        if self._told.get(purpose) != words:
            self._told[purpose] = words
            _log.warning("%s", words)

    def refusal(self, time: NodeTime, margin_ns: Span = 0) -> str | None:
        """Return why nobody accepts what this process signs, now or ``margin_ns`` from now; None: it is accepted.

        By the trust record of the last look. Without usable time nothing can be signed, and nothing is said.
        """
        try:
            at = time.now().midpoint + margin_ns
        except BadTime:
            return None
        if self._keyring is None:
            return None
        try:
            by = time.token().key_id  # the agent's, where one runs
        except BadTime:
            by = self.time.in_use.id
        refused = self._keyring.refuses(by, Purpose.TIME, at)
        return refused or self._keyring.refuses(self.witness.in_use.id, Purpose.WITNESS, at)

    def check_trusted(self, registers: Registers, time: NodeTime, margin_ns: Span = 0) -> None:
        """Raise NotTrusted where ``refusal`` has a reason, by the newest trust record. Touches the mount."""
        try:
            at = time.now().midpoint
        except BadTime:
            return
        self.look(registers.keyring(registers.newest().trust), at)
        reason = self.refusal(time, margin_ns)
        if reason:
            raise self.not_trusted(reason)

    def not_trusted(self, reason: str) -> NotTrusted:
        return NotTrusted(
            "key-not-trusted",
            f"what this node signs is accepted by nobody: {reason}",
            hint="tenure trust rotate makes the next keys; processes that get theirs as credentials start again",
        )


def check_own_keys(registers: Registers, settings: Settings) -> None:
    """Raise NotTrusted unless the newest trust record knows this node's own keys. Touches the mount."""
    keyring = registers.keyring(registers.newest().trust)
    for key in map(settings.key, (Purpose.TIME, Purpose.WITNESS, Purpose.TLS)):
        owner = keyring.node_of(key.id)
        if owner != settings.node:
            raise NotTrusted(
                "key-not-trusted",
                f"the key {fingerprint(key.public)} of {settings.directory} is "
                + (f"that of node {owner}" if owner else "not in the cluster's trust record"),
                hint=f"name another --node-dir; if joining was cut off, move {settings.directory} away and join again",
            )
