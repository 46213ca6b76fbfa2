"""The source *peer*: another node's agent, asked for a signed time over a nonce. Good to its radius and the round trip.

The answer was signed between the two readings of this machine's clock, so ``true - local`` lies in
``[answer.earliest - after, answer.latest - before]``. A peer answers with what its own sources say, never with what its
peers say: no word comes back to whom it is from, and each peer is one voice.

A machine that was paused with all its clocks cannot tell by itself; its peers' answers can.

The nonce covers a signed time of what this node's own sources say, and this node then signs over the answer: whichever
of the two clocks is wrong, the three signatures show by rule R2 that one of them is (timeagent/agent/evidence.py).

What is refused, by name: ``peer-key`` (not that node's trusted key, or a bad signature), ``peer-assumed`` (a stated
radius measures nothing), ``peer-status``, ``no-answer``, ``door-garbled``, and what the peer itself refuses with.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from timeagent.canonical import DIGEST_BYTES, digest
from timeagent.clock import MachineClock
from timeagent.errors import BadTime
from timeagent.units import MS, Span

from ..signedtime import SignedTime, TimeFlags
from .nonce import NonceKind, NonceQuestion, answers, encode_question, peer_digest, token_of
from .port import Exchange, Sample, offset_between

TIMEOUT_NS: Final[Span] = 500 * MS
NONCE_CONTEXT: Final = "peer nonce"

type Refusing = Callable[[SignedTime, bytes], str | None]
"""Why a signed time over a digest is not accepted as this peer's, or None."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One exchange, as evidence: the nonce is ``nonce_over(own, chance)``."""

    own: bytes
    """What this node's own sources said before it asked, signed over ``chance``, encoded; or nothing."""
    chance: bytes
    answer: bytes


def nonce_over(own: bytes, chance: bytes) -> bytes:
    """Return the nonce that covers this node's own signed time."""
    return digest(NONCE_CONTEXT, own + chance)


class PeerSource:
    """Another node's agent."""

    def __init__(
        self,
        machine: MachineClock,
        node: str,
        exchange: Exchange,
        refuses: Refusing,
        chance: random.Random,
        *,
        own_word: Callable[[bytes], bytes] = lambda _: b"",
    ) -> None:
        """Take the way to the peer, and who judges its signatures: the trust record's keys of that node.

        ``own_word``: what this node's own sources say, signed over 32 bytes and encoded; nothing if they are silent.
        """
        self.name = f"peer {node}"
        self._machine = machine
        self._exchange = exchange
        self._refuses = refuses
        self._chance = chance
        self._own_word = own_word
        self.asked: Asked | None = None
        """The exchange behind the newest sample."""

    def sample(self) -> Sample:
        """Ask once. Blocks at most for the exchange's time-out. Raises BadTime."""
        self.asked = None
        chance = self._chance.randbytes(DIGEST_BYTES)
        own = self._own_word(chance)
        nonce = nonce_over(own, chance)
        question = NonceQuestion(NonceKind.PEER, chance[:8], nonce)
        boot_ns = self._machine.boot_ns()
        before = self._machine.realtime_ns()
        data = self._exchange(encode_question(question), lambda each: answers(question, each))
        after = self._machine.realtime_ns()
        token = token_of(question, data, self.name)
        self._judge(token, peer_digest(nonce))
        self.asked = Asked(own, chance, token.encode())
        cluster_time = bool(token.flags & TimeFlags.CLUSTER)
        return Sample(offset_between(token.interval, before, after), boot_ns, cluster_time=cluster_time)

    def _judge(self, token: SignedTime, covered: bytes) -> None:
        reason = self._refuses(token, covered)
        if reason is not None:
            raise BadTime("peer-key", f"{self.name}: {reason}", hint="compare the trust record and the peer's address")
        if not token.status.usable:
            raise BadTime(
                "peer-status", f"{self.name} has status {token.status.name.lower()}", hint="look at that machine"
            )
        if token.flags & TimeFlags.ASSUMED:
            raise BadTime(
                "peer-assumed", f"{self.name} states its radius and measures nothing", hint="run chrony there"
            )
