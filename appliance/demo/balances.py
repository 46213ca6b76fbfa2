"""A view of the demo's bank: what every account has, as a fold over the settled messages."""

from __future__ import annotations

from typing import Final

import msgspec

from appliance.bag.batch import MessageBatch
from appliance.demo.bank import LOG, Opening, Transfer, decode_entry
from appliance.views.fold import Fold


class Balances(msgspec.Struct):
    """The state: what money is where, and how it came about."""

    balances: dict[str, int] = {}
    opened: int = 0
    """All the money there is."""
    transfers: int = 0
    lowest: int = 0
    """The lowest balance that ever was."""
    strangers: int = 0
    """Messages that are none of the bank's: skipped, by everybody alike."""


def step(state: Balances, batch: MessageBatch) -> Balances:
    for payload in batch.payloads():
        try:
            entry = decode_entry(payload)
        except msgspec.DecodeError:
            state.strangers += 1
            continue
        match entry:
            case Opening(account=account, amount=amount):
                state.balances[account] = state.balances.get(account, 0) + amount
                state.opened += amount
            case Transfer(source=source, target=target, amount=amount):
                state.balances[source] = state.balances.get(source, 0) - amount
                state.balances[target] = state.balances.get(target, 0) + amount
                state.lowest = min(state.lowest, state.balances[source])
                state.transfers += 1
    return state


def encode(state: Balances) -> bytes:
    """Write the state as JSON, accounts in order."""
    return msgspec.json.encode(state, order="sorted")


BALANCES: Final[Fold[Balances]] = Fold(
    view="balances",
    version=1,
    logs=(LOG,),
    initial=encode(Balances()),
    decode=msgspec.json.Decoder(Balances).decode,
    step=step,
    encode=encode,
)
