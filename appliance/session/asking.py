"""One acquire: what may be asked for, who asks, what is taken, and what is raised where there is no lease.

A session that ends while one of its threads waits for a lease must not be granted it behind its own back: the shard
would have a lease out that nobody gives back, and who stops the shard in good order would wait until it expires. So
whoever asks is told to give up, gives back what came all the same, and is waited for (``PendingAcquires``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Self

from appliance.formats.lease import Mode
from appliance.formats.names import check_domain
from appliance.formats.policy import PolicyNumbers
from appliance.lease.client import LeaseUnavailable, Suspect
from appliance.lease.wire import Denied, Over, Refused
from timeagent.clock import NodeTime
from timeagent.errors import BadRequest, BadTime, ShardUnavailable, TryAgain, check_type
from timeagent.units import MS, Instant, Seconds, Span, rfc3339, span_of, span_text

from .endings import KEPT, Recall
from .held import Keeper, Lease

ATTEMPTS_WAITED_FOR: Final = 6
"""How many time-outs of an attempt whoever asks is waited for: the call that is held back, and giving back."""

_LOOK_NS: Final = 5 * MS


class Leases(tuple["Lease", ...]):  # noqa: SLOT001 - a tuple has no room for a slot
    """The leases of one ``acquire``, in order of domain. Relinquished at the end of a ``with`` block."""

    give_back: Callable[[Leases], object]
    """Their session's way to relinquish."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.give_back(self)


def checked_leases(leases: Iterable[Lease]) -> list[Lease]:
    """Return these leases, each once. Raises BadRequest for what is none, one lease instead of several included."""
    if not isinstance(leases, Iterable):
        check_type(Iterable, leases=leases)
    chosen = list(leases)
    for each in chosen:
        if not isinstance(each, Lease):
            check_type(Lease, lease=each)
    return list(dict.fromkeys(chosen))


def spans_of(**seconds: Seconds | None) -> list[Span | None]:
    """Return spans in nanoseconds, of those that are named. Raises BadRequest."""
    return [None if each is None else span_of(each, name) for name, each in seconds.items()]


def chosen_together(asked: bool | None, usual: bool, own: Sequence[Span | None]) -> bool:  # noqa: FBT001 - and its default
    """Return whether leases are taken under a session lease. ``own``: what would give them an expiry of their own."""
    check_type(bool | None, session_lease=asked)
    alone = any(each is not None for each in own)
    if asked and alone:
        raise BadRequest(
            "own-expiry",
            "a lease under a session lease has no term and no cap of its own: it lives as long as that is renewed",
            hint="leave out term_s, hold_s_max and progress_within_s, or session_lease",
        )
    return (usual if asked is None else asked) and not alone


def wanted_modes(domains: Iterable[str], mode: Mode | str | Mapping[str, Mode | str]) -> dict[str, Mode]:
    """Return the mode of each domain: one for all, or each its own. Raises BadRequest."""
    names = list(dict.fromkeys([check_domain(each) for each in domains]))
    if not names:
        raise BadRequest("no-domain", "acquire needs at least one domain", hint="name what you want to write about")
    try:
        if isinstance(mode, Mapping):
            return {name: Mode(mode.get(name, "")) for name in names}
        return dict.fromkeys(names, Mode(mode))
    except ValueError:
        raise BadRequest(
            "bad-mode",
            f"{mode!r} is no mode for {names!r}",
            hint=f"one of {', '.join(Mode)}, or a mapping with each domain",
        ) from None


def chosen_term(policy: PolicyNumbers, *asked_ns: Span | None) -> Span:
    """Return the term to ask for: the shortest of those given and the policy's. Raises BadRequest if it is useless."""
    term = min(each for each in (policy.lease_term_max_ns, *asked_ns) if each is not None)
    if term <= policy.holder_margin_ns:
        raise BadRequest(
            "term-too-short",
            f"a term of {span_text(term)} is over before it is of use: a holder stops "
            f"{span_text(policy.holder_margin_ns)} before the expiry",
            hint="ask for a longer term",
        )
    return term


def chosen_recall(recall: Recall | str | None, sticky_ns: Span | None) -> Recall:
    """Return what was chosen: without a choice sticky leases are finished with, and others kept. Raises BadRequest."""
    try:
        chosen = Recall(recall) if recall is not None else Recall.IGNORE if sticky_ns is None else Recall.FINISH
    except ValueError:
        raise BadRequest(
            "bad-recall", f"{recall!r} is no answer to a recall", hint=f"one of {', '.join(Recall)}"
        ) from None
    if sticky_ns is not None and (chosen in KEPT or sticky_ns <= 0):
        raise BadRequest(
            "bad-sticky",
            f"a lease that is kept between uses for {sticky_ns} ns, with {str(chosen)!r} as the answer to a recall, "
            "would be kept from everybody else, or not at all",
            hint="name a span above 0, and finish, flush or relinquish",
        )
    return chosen


type Obstacle = Denied | Over | LeaseUnavailable | Suspect | Refused


def raise_final(obstacle: Obstacle) -> None:
    """Raise what waiting cannot mend."""
    if isinstance(obstacle, Refused):
        raise BadRequest(obstacle.code, obstacle.message, hint=obstacle.hint)
    if isinstance(obstacle, Suspect):
        raise BadTime(
            "suspect-witness",
            f"the shard's witness on {obstacle.domain!r} is refused: {obstacle.reason}",
            hint="a clock is out of its bounds: tenure time now, on both nodes",
        )


def given_up_for(obstacle: Obstacle, timeout_ns: Span) -> TryAgain:
    """Return what is raised once so long was waited, by what was in the way last."""
    waited = span_text(timeout_ns)
    match obstacle:
        case Denied():
            return TryAgain(
                "busy",
                f"{denial_text(obstacle)}; waited {waited}, as number {obstacle.place} of those who wait",
                hint="allow more time, or ask the holder",
            )
        case LeaseUnavailable():
            return ShardUnavailable(
                obstacle.code,
                f"no lease on {obstacle.domain!r} within {waited}: {obstacle.message}",
                hint=obstacle.hint
                or ("tenure time sources, at that node, says why" if obstacle.code == "bad-time" else "")
                or "tenure lease ls shows which shards answer",
            )
        case _:
            return TryAgain("outrun", f"an older request was faster; waited {waited}", hint="try again")


def denial_text(denied: Denied) -> str:
    """Return who has a domain, since when and until when at least, as people read it."""
    holder = denied.holder
    purpose = f" ({holder.purpose})" if holder.purpose else ""
    return (
        f"{denied.domain!r} is {denied.reason} by {holder.node}/{holder.process}{purpose} "
        f"since {rfc3339(denied.since_ns)} until {rfc3339(denied.until_ns)} at least"
    )


def waiting_text(denied: Denied) -> str:
    """Return for whom is waited, as a line for who waits at a terminal."""
    who = f"{denied.holder.node}/{denied.holder.process} ({denied.holder.purpose})"
    since, until = (f"{rfc3339(each)[11:19]}Z" for each in (denied.since_ns, denied.until_ns))
    return f"for {denied.domain}: {who} has it since {since}, until {until} at least"


def check_in_time(time: NodeTime, domain: str, target: Instant, until_boot_ns: int) -> None:
    """Raise TryAgain, code ``warming``, where the time for the wait is over."""
    if time.boot_ns() >= until_boot_ns:
        raise TryAgain(
            "warming",
            f"an earlier holder of {domain!r} may believe until {rfc3339(target)} that it holds it",
            hint="allow more time: an earlier holder died, or its shard did; who only writes messages need not wait",
        )


class PendingAcquires:
    """The threads of one session that ask."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._count = 0
        self.over = False
        """Whether nobody may ask any more."""

    @contextlib.contextmanager
    def under_way(self, given_up: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
        """Count who asks; what is handed on says when to give up: ``given_up`` does, or nobody may ask any more.

        Raises BadRequest, ``session-closed``, also in the place of whatever else came of asking meanwhile.
        """
        with self._keeper.lock:
            self.check()
            self._count += 1
        try:
            yield lambda: self.over or given_up()
        except Exception:
            self.check()
            raise
        finally:
            with self._keeper.lock:
                self._count -= 1

    def check(self) -> None:
        """Raise BadRequest if nobody may ask any more."""
        if self.over:
            raise BadRequest("session-closed", "this session is closed", hint="begin another one")

    def end(self) -> None:
        """Let nobody ask any more. Idempotent; does not wait."""
        with self._keeper.lock:
            self.over = True

    def wait(self) -> None:
        """Wait for those who ask to have given up: as long as that may take, and no longer."""
        time = self._keeper.time
        until = time.boot_ns() + ATTEMPTS_WAITED_FOR * self._keeper.policy.attempt_timeout_ns
        while self._count and time.boot_ns() < until:
            time.sleep(_LOOK_NS)
