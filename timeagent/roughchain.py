"""One chain of questions over all configured Roughtime servers, in the order in which they were asked.

Each nonce is a hash of the answer before it, whoever gave that, so any two answers are ordered and can be held against
each other. What contradicts becomes a malfeasance report with everything between the two, once for each two servers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from .malfeasance import Contradiction, Queried, contradictions
from .roughevidence import RoughEvidence
from .roughwire import NONCE_BYTES, Answer, chained_nonce, make_request, nonce_of, open_answer

WINDOW: Final = 128
"""How many exchanges are held against each new one."""


@dataclass(frozen=True, slots=True)
class _Link:
    queried: Queried
    answer: Answer


class RoughChain:
    """The chain of one process. Thread-safe: questions are asked one after the other."""

    def __init__(self, chance: random.Random, evidence: RoughEvidence) -> None:
        """Take randomness that nobody can foretell, and where evidence is kept."""
        self._chance = chance
        self._evidence = evidence
        self._lock = Lock()
        self._links: list[_Link] = []
        self._reported: set[frozenset[bytes]] = set()

    def ask(self, public: bytes, exchange: Callable[[bytes, Callable[[bytes], bool]], bytes]) -> Answer:
        """Ask one server, over one exchange, which may raise BadTime. Raises Damaged: it proves nothing.

        Blocks for the exchange, and for those of others that ask now.
        """
        with self._lock:
            rand = self._chance.randbytes(NONCE_BYTES)
            last = self._links[-1].queried.response if self._links else b""
            nonce = chained_nonce(last, rand)
            request = make_request(public, nonce)
            response = exchange(request, lambda data: nonce_of(data) == nonce)
            answer = open_answer(public, request, response)
            self._keep(_Link(Queried(public, request, response, rand if self._links else None), answer))
            return answer

    def _keep(self, link: _Link) -> None:
        self._links = [*self._links[1 - WINDOW :], link]
        self._evidence.keep(link.queried)
        for found in contradictions([each.answer for each in self._links]):
            if found.later == len(self._links) - 1:
                self._report(found)

    def _report(self, found: Contradiction) -> None:
        chain = [each.queried for each in self._links[found.earlier : found.later + 1]]
        between = frozenset((chain[0].public, chain[-1].public))
        if between not in self._reported:
            self._reported.add(between)
            self._evidence.report([replace(chain[0], rand=None), *chain[1:]])
