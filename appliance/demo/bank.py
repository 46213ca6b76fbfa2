"""The demo's application: accounts with balances, and transfers between them. Messages in, balances out; no I/O.

A message is one JSON object. ``open`` brings an account into being with its first money; ``transfer`` moves money.
Every message carries an id, by which the demo checks afterwards that nothing was lost and nothing counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

LOG = "bank"


class Opening(msgspec.Struct, frozen=True, tag="open"):
    """An account begins."""

    id: str
    account: str
    amount: int


class Transfer(msgspec.Struct, frozen=True, tag="transfer"):
    """Money goes from one account to another."""

    id: str
    source: str
    target: str
    amount: int


_decoder = msgspec.json.Decoder(Opening | Transfer)


def decode_entry(payload: bytes) -> Opening | Transfer:
    """Read a message. Raises msgspec.DecodeError for what is none of the bank's."""
    entry: Opening | Transfer = _decoder.decode(payload)
    return entry


def encode(entry: Opening | Transfer) -> bytes:
    return msgspec.json.encode(entry)


@dataclass(slots=True)
class Books:
    """A fold over messages in their order."""

    balances: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """How often each id was met."""
    opened: int = 0
    """All the money there is."""
    lowest: int = 0
    """The lowest balance that ever was: below zero means that two holders spent the same money."""

    def apply(self, payload: bytes) -> None:
        entry = decode_entry(payload)
        self.seen[entry.id] += 1
        match entry:
            case Opening(account=account, amount=amount):
                self.balances[account] += amount
                self.opened += amount
            case Transfer(source=source, target=target, amount=amount):
                self.balances[source] -= amount
                self.balances[target] += amount
                self.lowest = min(self.lowest, self.balances[source])

    def apply_all(self, payloads: Iterable[bytes]) -> Books:
        """Take in messages in order; return self."""
        for payload in payloads:
            self.apply(payload)
        return self

    def copied(self) -> Books:
        """Return books of their own with the same content."""
        return Books(self.balances.copy(), self.seen.copy(), self.opened, self.lowest)

    @property
    def conserved(self) -> bool:
        return sum(self.balances.values()) == self.opened

    @property
    def doubled(self) -> int:
        return sum(1 for count in self.seen.values() if count > 1)


def account(number: int) -> str:
    """Return an account's name, which is also its domain."""
    return f"account/{number:02d}"
