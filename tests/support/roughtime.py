"""Roughtime servers of the tests: they answer in this process, and say whatever time they are told to say."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from timeagent.keys import Signer
from timeagent.malfeasance import Queried
from timeagent.roughwire import answer_batch, chained_nonce, delegate, make_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NOW_S = 1_795_212_607


def signer(name: str) -> Signer:
    return Signer(hashlib.sha256(name.encode()).digest())


@dataclass
class Witness:
    """A server with a clock of its own."""

    name: str
    midpoint_s: int = NOW_S
    radius_s: int = 3

    def __post_init__(self) -> None:
        self.long_term = signer(self.name)
        self.online = delegate(self.long_term, signer(f"{self.name} online"), 0, 2 * NOW_S)

    @property
    def public(self) -> bytes:
        return self.long_term.public

    def answer(self, request: bytes) -> bytes:
        (answer,) = answer_batch(self.online, [request], self.midpoint_s, self.radius_s)
        assert answer is not None
        return answer

    def exchange(self, request: bytes, wanted: Callable[[bytes], bool]) -> bytes:
        """The port of the client: over no network."""
        answer = self.answer(request)
        assert wanted(answer)
        return answer


def chain_of(said: Iterable[tuple[Witness, int, int]], chance: random.Random | None = None) -> list[Queried]:
    """Ask one after the other: each says this midpoint and radius, in seconds."""
    chance = chance or random.Random(0)
    chain: list[Queried] = []
    for witness, midpoint_s, radius_s in said:
        witness.midpoint_s, witness.radius_s = midpoint_s, radius_s
        rand = chance.randbytes(32)
        nonce = chained_nonce(chain[-1].response if chain else b"", rand)
        request = make_request(witness.public, nonce)
        chain.append(Queried(witness.public, request, witness.answer(request), rand if chain else None))
    return chain
