"""The demo's application: accounts with balances, and transfers between them. Messages in, balances out; no I/O.

A message is one JSON object. ``open`` brings an account into being with its first money; ``transfer`` moves money.
Every message carries an id, by which the demo checks afterwards that nothing was lost and nothing counted twice.
``BALANCES`` is the view of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from appliance.bag.message import MessageBatch
from appliance.views import Fold

LOG: Final = "bank"


class Opening(msgspec.Struct, frozen=True, tag="open"):
    id: str
    account: str
    amount: int


class Transfer(msgspec.Struct, frozen=True, tag="transfer"):
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


class Balances(msgspec.Struct):
    """What money is where, and how it came about: a fold over messages in their order, and the state of the view."""

    balances: dict[str, int] = {}
    opened: int = 0
    """All the money there is."""
    transfers: int = 0
    lowest: int = 0
    """The lowest balance that ever was: below zero means that two holders spent the same money."""
    strangers: int = 0
    """Messages that are none of the bank's: skipped, by everybody alike."""

    def take(self, entry: Opening | Transfer) -> None:
        balances = self.balances
        match entry:
            case Opening(account=account, amount=amount):
                balances[account] = balances.get(account, 0) + amount
                self.opened += amount
            case Transfer(source=source, target=target, amount=amount):
                balances[source] = balances.get(source, 0) - amount
                balances[target] = balances.get(target, 0) + amount
                self.lowest = min(self.lowest, balances[source])
                self.transfers += 1


class Books(Balances):
    """The balances of whoever answers for them: with how often each id was met."""

    seen: dict[str, int] = {}

    def apply_all(self, payloads: Iterable[bytes]) -> Books:
        """Take in messages in order; return self. Raises msgspec.DecodeError for what is none of the bank's."""
        for entry in map(decode_entry, payloads):
            self.seen[entry.id] = self.seen.get(entry.id, 0) + 1
            self.take(entry)
        return self

    def copied(self) -> Books:
        return msgspec.structs.replace(self, balances=self.balances.copy(), seen=self.seen.copy())

    @property
    def conserved(self) -> bool:
        return sum(self.balances.values()) == self.opened

    @property
    def doubled(self) -> int:
        return sum(1 for count in self.seen.values() if count > 1)


def step(state: Balances, batch: MessageBatch) -> Balances:
    for payload in batch.payloads():
        try:
            entry = decode_entry(payload)
        except msgspec.DecodeError:
            state.strangers += 1
        else:
            state.take(entry)
    return state


def encode_balances(state: Balances) -> bytes:
    return msgspec.json.encode(state, order="sorted")


BALANCES: Final[Fold[Balances]] = Fold(
    view="balances",
    version=1,
    logs=(LOG,),
    initial=encode_balances(Balances()),
    decode=msgspec.json.Decoder(Balances).decode,
    step=step,
    encode=encode_balances,
)


def account(number: int) -> str:
    """Return an account's name, which is also its domain."""
    return f"account/{number:02d}"
