"""Time from the node's agent: ``now`` and ``token`` from its page, signed times over digests by its door.

A NodeTime like timeagent/embedded.py's, for processes of a machine on which ``tenure time run`` runs. Reading is a
look into mapped memory and at two clocks: no call to anybody. Thread-safe.

What is refused, by code of BadTime: ``page-absent``, ``page-short``, ``page-version``, ``page-torn``,
``page-damaged``,
``page-other-boot``, ``page-other-key``, ``page-stale`` (older than it may be: the agent stands still), ``page-ahead``
(another CLOCK_BOOTTIME than this process has: a time namespace), ``no-time``, ``clock-disrupted``, ``radius-too-wide``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .clock import AgentClock, boot_id
from .errors import BadTime, Damaged
from .interval import TimeInterval
from .noncedoor import NonceClient
from .signedtime import ClockStatus, SignedTime
from .tokenfile import GENERATION_WORD, PAGE_NAME, Page, PageReader
from .units import Span, span_text

_RUNS: Final = frozenset({"no-time", "clock-disrupted", "radius-too-wide"})
"""With these words an agent that runs says that it has nothing to say."""

_RUN: Final = "does the time agent run? tenure time run"


type _View = tuple[int, int, int, int, int, int, Span, Span, SignedTime]
"""What a look needs of a page: generation (as its word of memory), as of (boot, raw), true minus boot (earliest,
latest), drift, how far it may grow, staleness, token. A tuple, because a look is taken apart in one go."""


class AgentTime:
    """A NodeTime by the agent's page and door."""

    def __init__(
        self,
        directory: Path,
        clock: AgentClock,
        *,
        boot: bytes,
        key_id: bytes,
        radius_ns_max: Span,
        is_own: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """Map the page in the node's tmpfs directory. Raises BadTime if there is none.

        ``boot``: the 16 bytes of this boot's id. ``key_id``: of the node's time key; another key's page is refused,
        unless ``is_own`` says that it is one of this node's too: the agent takes a rotation up sooner than this
        process, or later.
        """
        self._reader = PageReader(directory / PAGE_NAME)
        self._door = NonceClient(directory)
        self._machine = clock
        self._boot_ns = clock.boot_ns
        self._raw_ns = clock.raw_ns
        self._boot = boot
        self._key_id = key_id
        self._is_own = is_own
        self.limit_radius(radius_ns_max)
        self._words = self._reader.words
        self._view: _View | None = None

    def limit_radius(self, radius_ns_max: Span) -> None:
        """Refuse, from now on, time that is known less well than this."""
        self._radius_ns_max = radius_ns_max
        self._width_max = 2 * radius_ns_max

    def boot_ns(self) -> int:
        """Return CLOCK_BOOTTIME."""
        return self._boot_ns()

    def sleep(self, span: Span) -> None:
        """Wait about that long."""
        self._machine.sleep(span)

    def now(self) -> TimeInterval:
        """Return the interval that holds true time. Raises BadTime."""
        return self.now_and_token()[0]

    def token(self) -> SignedTime:
        """Return the agent's current signed time. Raises BadTime as ``now`` does."""
        return self.now_and_token()[1]

    def now_and_token(self, *, again: bool = True) -> tuple[TimeInterval, SignedTime]:
        """Return both, from one look at the page; from one more if that was stale. Raises BadTime."""
        view = self._view
        if view is None or self._words[GENERATION_WORD] != view[0]:
            view = self._judged()
        _, as_of_boot, as_of_raw, low, high, drift_ppm, room, stale_ns, token = view
        boot = self._boot_ns()
        age = boot - as_of_boot
        if not 0 <= age <= stale_ns:
            return self._stale(age, stale_ns, again=again)
        grown = 0
        if drift_ppm:
            grown = age * drift_ppm // 1_000_000 + 1
            slewed = self._raw_ns() - as_of_raw - age
            if not -grown <= slewed <= grown:
                grown += abs(slewed) * (1_000_000 + drift_ppm) // 1_000_000 + 1  # as timeagent/movement.py has it
        if grown > room:
            raise self._too_wide(high - low + 2 * grown)
        return TimeInterval(boot + low - grown, boot + high + grown), token

    def token_over(self, digest: bytes) -> SignedTime:
        """Return a signed time over 32 bytes, made now by the agent. Blocks for its answer. Raises BadTime."""
        token = self._door.sign(digest)
        self._check_key(token)
        if token.radius_ns > self._radius_ns_max:
            raise self._too_wide(2 * token.radius_ns)
        return token

    def _judged(self) -> _View:
        """Judge what does not change while the page stands, once."""
        page = self._reader.page()
        if page.boot != self._boot:
            raise BadTime(
                "page-other-boot", f"the time page is of boot {page.boot.hex()}, this is {self._boot.hex()}", hint=_RUN
            )
        if not page.token or not page.status.usable:
            raise self._silent(page)
        try:
            token = SignedTime.decode(page.token, "the time page")
        except Damaged as problem:
            raise BadTime(
                "page-damaged", problem.message, hint="run the agent and its readers from one version"
            ) from None
        self._check_key(token)
        ahead = page.ahead
        self._view = view = (
            int.from_bytes(page.generation, sys.byteorder),
            page.as_of_boot_ns,
            page.as_of_raw_ns,
            ahead.earliest,
            ahead.latest,
            page.drift_ppm,
            (self._width_max - (ahead.latest - ahead.earliest)) // 2,
            page.stale_ns,
            token,
        )
        return view

    def _silent(self, page: Page) -> BadTime:
        if page.status is ClockStatus.DISRUPTED:
            left = max(0, page.silent_until_ns - self._boot_ns())
            return BadTime(
                "clock-disrupted",
                f"what the agent knows of the time contradicts itself; it says nothing for another {span_text(left)}",
                hint="tenure time sources names who disagrees",
            )
        return BadTime(
            "no-time", "the time agent has no bound", hint="tenure time sources says why; tenure time wait waits"
        )

    def _stale(self, age: Span, stale_ns: Span, *, again: bool) -> tuple[TimeInterval, SignedTime]:
        """Refuse a page that is too old, unless the file was made anew meanwhile and holds another one."""
        if age < 0:
            raise BadTime(
                "page-ahead",
                f"the time page was written {span_text(-age)} after now: this process has another CLOCK_BOOTTIME",
                hint="run the agent and its readers in one time namespace",
            )
        if again:
            self._reader.reopen()
            self._words, self._view = self._reader.words, None
            return self.now_and_token(again=False)
        raise BadTime(
            "page-stale",
            f"the time page is {span_text(age)} old; {span_text(stale_ns)} are allowed",
            hint=f"{_RUN}; if it does, it stands still: see its scheduling in docs/operators.md",
        )

    def _check_key(self, token: SignedTime) -> None:
        if token.key_id == self._key_id:
            return
        if not self._is_own(token.key_id):
            raise BadTime(
                "page-other-key",
                f"the time agent signs with key id {token.key_id.hex()}, this node's time key has {self._key_id.hex()}",
                hint="start the agent with this node's directory: --node-dir; tenure trust ls names every id",
            )
        self._key_id = token.key_id

    def _too_wide(self, width: Span) -> BadTime:
        return BadTime(
            "radius-too-wide",
            f"the clock is known to {span_text((width + 1) // 2)}; the policy allows {span_text(self._radius_ns_max)}",
            hint="tenure time sources says what each source knows",
        )


def running_agent(
    directory: Path, clock: AgentClock, *, key_id: bytes, radius_ns_max: Span, is_own: Callable[[bytes], bool]
) -> AgentTime | None:
    """Return the agent's time if one runs for this node and publishes now, whatever it may say; else None."""
    boot = bytes.fromhex(boot_id().replace("-", ""))
    try:
        agent = AgentTime(directory, clock, boot=boot, key_id=key_id, radius_ns_max=radius_ns_max, is_own=is_own)
        agent.now_and_token()
    except BadTime as problem:
        return agent if problem.code in _RUNS else None
    return agent
