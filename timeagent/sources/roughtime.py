"""The source *Roughtime*: an outside witness, good to seconds. It votes on what the measures say and never shapes it.

The answer was signed between the two readings of this machine's clock, so ``true - local`` lies in
``[MIDP - RADI - after, MIDP + RADI - before]``. A server that does not answer, or whose answer does not verify, is left
alone for 1 s, then 1.5 times as long after each failure, up to a day (RFC 10049); a verified answer alone ends that.

What is refused, by name: ``roughtime-waiting`` (left alone until then), ``no-answer``, ``roughtime-malformed``,
``roughtime-signature``, ``roughtime-delegation`` (an online key that is expired or not yet valid).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from timeagent.clock import MachineClock
from timeagent.errors import BadTime, Damaged
from timeagent.interval import TimeInterval
from timeagent.malfeasance import RoughChain
from timeagent.serverlist import RoughtimeServer
from timeagent.signedtime import ClockStatus
from timeagent.units import DAY, MS, SECOND, Span, span_text

from .exchange import Exchange, UdpExchange
from .port import Sample

TIMEOUT_NS: Final[Span] = 1500 * MS
PERIOD_NS: Final[Span] = 64 * SECOND
"""How often a public server may be asked: it serves many."""
RETRY_NS: Final[Span] = SECOND
RETRY_NS_MAX: Final[Span] = DAY


def retry_after(failures: int) -> Span:
    """Return how long a server is left alone after so many failures in a row."""
    span = RETRY_NS
    for _ in range(failures - 1):
        if span >= RETRY_NS_MAX:
            break
        span = span * 3 // 2
    return min(span, RETRY_NS_MAX)


class RoughtimeSource:
    """One Roughtime server."""

    def __init__(
        self,
        machine: MachineClock,
        server: RoughtimeServer,
        chain: RoughChain,
        exchange: Callable[[str, int], Exchange] = lambda host, port: UdpExchange(host, port, timeout_ns=TIMEOUT_NS),
    ) -> None:
        """Take the server and the chain that its answers go into."""
        self.name = f"roughtime {server.name}"
        self._machine = machine
        self._server = server
        self._chain = chain
        self._exchange = exchange(server.host, server.port)
        self._failures = 0
        self._not_before_ns = 0

    def sample(self) -> Sample:
        """Ask once. Blocks at most for the exchange's time-out, and for the chain's other questions. Raises BadTime."""
        boot_ns = self._machine.boot_ns()
        if boot_ns < self._not_before_ns:
            raise BadTime(
                "roughtime-waiting",
                f"{self.name} failed {self._failures} times in a row and is left alone for "
                f"{span_text(self._not_before_ns - boot_ns)}",
                hint="is its address right, and its key?",
            )
        instants = [0, 0]

        def timed(request: bytes, wanted: Callable[[bytes], bool]) -> bytes:
            nonlocal boot_ns
            boot_ns, instants[0] = self._machine.boot_ns(), self._machine.realtime_ns()
            answer = self._exchange(request, wanted)
            instants[1] = self._machine.realtime_ns()
            return answer

        try:
            answer = self._chain.ask(self._server.public, timed)
        except BadTime:
            self._failed()
            raise
        except Damaged as problem:
            self._failed()
            raise BadTime(
                problem.code, f"{self.name}: {problem.message}", hint="compare its public key with the server list"
            ) from None
        self._failures = self._not_before_ns = 0
        said = answer.interval
        return Sample(
            self.name,
            TimeInterval(said.earliest - max(instants), said.latest - min(instants)),
            boot_ns,
            ClockStatus.SYNCHRONIZED,
        )

    def _failed(self) -> None:
        self._failures += 1
        self._not_before_ns = self._machine.boot_ns() + retry_after(self._failures)
