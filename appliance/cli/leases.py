"""``tenure lease``: who holds what; watching a domain, holding leases from a shell, and single leases by hand."""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from appliance.cluster import Cluster
from appliance.session.asking import Leases, chosen_term
from appliance.session.session import Session
from timeagent.console import (
    Argument,
    Command,
    argument,
    bound_fields,
    counted,
    instant_fields,
    note,
    present,
    printable,
    say,
    with_verbs,
)
from timeagent.errors import BadRequest, ShardUnavailable
from timeagent.units import MS, SECOND, Instant, Span, parse_span, rfc3339, span_text

from ..formats.lease import Holder, LeaseOutcome, Mode
from ..formats.names import check_domain
from ..formats.shardmap import shard_text
from ..formats.witness import SessionWitness, Witness
from ..lease.wire import LeaseView, lease_fields
from ..single_leases import NO_PROCESS, ByHand
from .opening import EXIT_NO, cluster_command

NEW_SESSION: Final = "new"
_SESSION_BYTES: Final = 16
BEAT_NS: Final = 200 * MS
"""How often it is looked: what begins and ends in between is not shown, and the ledger has it."""


def _who(view: LeaseView) -> str:
    return f"{view.holder.node}/{view.holder.process}"


def _line(view: LeaseView, now: Instant) -> str:
    left = view.expiry_ns - now
    phase, until = (view.phase, f"{span_text(left)} left") if left > 0 else ("expired", f"{span_text(-left)} ago")
    purpose = f"  ({view.holder.purpose})" if view.holder.purpose else ""
    queue = f"  {view.waiting} waiting" if view.waiting else ""
    session = "" if view.session_id is None else f"  session {view.session_id.hex()[-8:]}"
    return printable(f"{view.domain}  {view.mode} {phase}  {_who(view)}  {until}{session}{queue}{purpose}")


def _list(cluster: Cluster, options: Namespace) -> int:
    """Show all leases. 69 unless every shard answered: those that did not are named, and what they have is missing."""
    now = cluster.time.now().midpoint
    lines, silent = [], []
    shards: list[dict[str, Any]] = []
    for shard in cluster.map.shards:
        try:
            numbers, leases = cluster.inspect(shard)
        except ShardUnavailable as problem:
            silent.append(str(shard))
            shards.append({"shard": shard, "node": cluster.map.owner_of(shard), "answers": False})
            note(f"tenure: {problem.message} [{problem.code}]")
        else:
            fields = {"shard": shard, "node": numbers.node, "answers": True, "incarnation": numbers.incarnation.hex()}
            fields |= instant_fields("ceiling", numbers.ceiling_ns)
            shards.append(fields | {"leases": [lease_fields(view) for view in leases]})
            lines += [_line(view, now) for view in leases]
    present(options, "tenure.leases", {"shards": shards}, *lines)
    if not lines and not options.json and len(silent) < len(shards):
        note("tenure: nobody has a lease" + (" on the shards that answer" if silent else ""))
    if silent:
        note(f"tenure: {counted(len(silent), 'shard')} of {len(shards)} did not answer: {', '.join(silent)}")
    return ShardUnavailable.exit_status if silent else 0


def _show(cluster: Cluster, options: Namespace) -> int:
    shard = cluster.map.shards_of(options.domain)[0]
    _, views = cluster.routes.inspect(shard, options.domain)
    now = cluster.time.now()
    lines = [_line(view, now.midpoint) for view in views]
    leases = [lease_fields(each) for each in views]
    return present(
        options,
        "tenure.lease",
        {"shard": shard, "lease": leases[0] if leases else None, "leases": leases},
        *(lines or [f"{options.domain}: nobody has it (shard {shard_text(shard)})"]),
        status=EXIT_NO if all(now.surely_past(view.expiry_ns) for view in views) else 0,
    )


def _hold(cluster: Cluster, options: Namespace) -> int:
    span, timeout_s = parse_span(options.seconds), parse_span(options.wait) / SECOND
    with (
        cluster.session(options.purpose, session_leases=options.session) as session,
        session.acquire(*options.domains, mode=Mode(options.mode), timeout_s=timeout_s) as leases,
    ):
        for lease in leases:
            fields = {"domain": lease.domain, "mode": lease.mode, "fence": str(lease.fence)}
            fields |= instant_fields("expiry", lease.expiry_ns)
            present(options, "tenure.held", fields, f"{lease.domain}: held, mode {lease.mode}, fence {lease.fence}")
        _wait(cluster, session, leases, span)
    return 0


def _wait(cluster: Cluster, session: Session, leases: Leases, span: Span) -> None:
    """Wait as long as the leases are held. Raises LeaseLost as soon as they are not."""
    until = cluster.time.boot_ns() + span
    known = dict.fromkeys((lease.domain for lease in leases), "held")
    while (left := until - cluster.time.boot_ns()) > 0:
        session.check_held(leases)
        for lease in leases:
            now = lease.outlook()
            if known[lease.domain] != now.state:
                why = "" if now.reason is None else f" ({now.reason})"
                note(f"tenure: {lease.domain}: {now.state}{why}, good for {span_text(now.good_ns)}")
            known[lease.domain] = now.state
        cluster.time.sleep(min(left, 100 * MS))


def run_watch(cluster: Cluster, options: Namespace) -> int:
    """Show each change, from what there is at first. A shard that does not answer is said so once, and asked again.

    Interrupting is how it is left. 69 if it never answered.
    """
    time = cluster.time
    until = None if options.seconds is None else time.boot_ns() + parse_span(options.seconds)
    before: Sequence[LeaseView] = ()
    answered, silent = False, False
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                _, views = cluster.routes.inspect(cluster.map.shards_of(options.domain)[0], options.domain)
            except ShardUnavailable as problem:
                if not silent:
                    note(f"tenure: {problem.message}; asking again")
                silent = True
            else:
                moment = time.now()
                views = [each for each in views if not moment.surely_past(each.expiry_ns)]  # listed until it is broken
                if not answered and not views and not options.json:
                    say(f"{options.domain}: nobody has it")
                for what, view in changes(before, views):
                    now, queue = moment.midpoint, f", {view.waiting} waiting" if view.waiting else ""
                    stands = f"fence {view.fence}  until {rfc3339(view.expiry_ns)}{queue}"
                    fields = {"what": what, **instant_fields("seen", now), **lease_fields(view)}
                    line = f"{rfc3339(now)}  {what}  {view.mode}  {_who(view)}  {stands}"
                    present(options, "tenure.lease-change", fields, line)
                before, answered, silent = views, True, False
            if until is not None and time.boot_ns() >= until:
                break
            time.sleep(BEAT_NS)
    return 0 if answered else ShardUnavailable.exit_status


def changes(before: Sequence[LeaseView], after: Sequence[LeaseView]) -> Iterator[tuple[str, LeaseView]]:
    """Return what has happened between two looks at one domain: what is over first."""
    were = {each.correlation_id: each for each in before}
    are = {each.correlation_id: each for each in after}
    for name, view in were.items():
        if name not in are:
            yield "over", view
    for name, view in are.items():
        known = were.get(name)
        if known is None:
            yield str(view.phase), view
        elif (known.mode, known.phase) != (view.mode, view.phase):
            yield "upgraded", view
        elif known.expiry_ns != view.expiry_ns:
            yield "renewed", view
        elif known.waiting != view.waiting:
            yield "waiting", view


def _term(cluster: Cluster, options: Namespace) -> Span:
    term = parse_span(options.term) if options.term else cluster.policy.lease_term_max_ns
    chosen_term(cluster.policy, term)  # refuses one that is too short
    return term


def _term_fields(options: Namespace, granted_ns: Span) -> dict[str, Span | None]:
    """Return the term that was asked for and the one that was granted, as JSON shows them; say where it is less."""
    asked = parse_span(options.term) if options.term else None
    if asked is not None and granted_ns < asked:
        note(
            f"tenure: {options.domain}: granted for {span_text(granted_ns)}, not for the {span_text(asked)} that "
            "were asked for [term-shortened]"
        )
        note("  way out: renew it before; tenure policy show says what the longest term is")
    return {"term_asked_ns": asked, "term_granted_ns": granted_ns}


def _the_one(hand: ByHand, options: Namespace) -> LeaseView | None:
    """Return the lease that is meant; None: there is none. Raises BadRequest where several could be."""
    views = hand.leases(options.domain)
    if options.lease is not None:
        return next((each for each in views if each.correlation_id.hex() == options.lease), None)
    if len(views) > 1:
        names = ", ".join(each.correlation_id.hex() for each in views)
        hint = "name one: --lease"
        raise BadRequest("several-leases", f"there are {len(views)} leases on {options.domain!r}: {names}", hint=hint)
    return views[0] if views else None


def _acquire(cluster: Cluster, hand: ByHand, options: Namespace) -> int:
    wait, term, now = parse_span(options.wait), _term(cluster, options), cluster.time.now()
    session = None if options.session is None else _session(hand, options, term)
    witness, granted_ns = hand.acquire(options.domain, Mode(options.mode), term, wait, options.purpose, session)
    if options.session == NEW_SESSION:
        granted_ns = hand.granted_ns(term, now, witness.expiry_ns)  # the term is the session's
    return _shown(witness, granted_ns, options)


def _session(hand: ByHand, options: Namespace, term: Span) -> tuple[bytes, Holder]:
    """Return the session lease that the options name, with its holder. Raises BadRequest where it is not there."""
    if options.session == NEW_SESSION:
        witness = hand.begin_session(options.domain, term, options.purpose)
        return witness.session_id, witness.holder
    session_id = b""
    with contextlib.suppress(ValueError):
        session_id = bytes.fromhex(options.session)
    views = hand.under(options.domain, session_id) if len(session_id) == _SESSION_BYTES else []
    if not views or views[0].holder.process != NO_PROCESS:
        what = f"the shard of {options.domain!r} has no session lease {options.session!r} that was taken by hand"
        hint = f"--session {NEW_SESSION} begins one: each shard has its own; shards ls, and lease ls say what is out"
        raise BadRequest("no-session", what, hint=hint)
    return session_id, views[0].holder


def _renew(cluster: Cluster, hand: ByHand, options: Namespace) -> int:
    view, now = _the_one(hand, options), cluster.time.now()
    if view is None or now.surely_past(view.expiry_ns):
        return _over(options, view)
    term = _term(cluster, options)
    witness = hand.renew(view, term)
    if witness is None:
        return _over(options)
    granted_ns = hand.granted_ns(term, now, witness.expiry_ns)
    if isinstance(witness, SessionWitness):
        return _all(view, witness, granted_ns, options)
    return _shown(witness, granted_ns, options)


def _all(view: LeaseView, witness: SessionWitness, granted_ns: Span, options: Namespace) -> int:
    """Show that a session lease was renewed, and with it every lease under it."""
    if view.correlation_id in witness.ended:
        return _over(options)
    terms = _term_fields(options, granted_ns)
    session = witness.session_id.hex()
    fields = {"domain": view.domain, "session_id": session} | instant_fields("expiry", witness.expiry_ns) | terms
    words = f"{view.domain}: held with all under session {session}, until {rfc3339(witness.expiry_ns)}"
    return present(options, "tenure.session-renewed", fields, words)


def _relinquish(cluster: Cluster, hand: ByHand, options: Namespace) -> int:
    view, now = _the_one(hand, options), cluster.time.now()
    if view is None:
        return _over(options)
    if options.whole_session and view.session_id is None:
        hint = "leave out --whole-session: it is given back alone"
        raise BadRequest("no-session", f"the lease on {view.domain!r} is under no session lease", hint=hint)
    outcome = hand.relinquish(view, whole_session=options.whole_session)
    if now.surely_past(view.expiry_ns):
        return _over(options, view)  # given back all the same: who comes next need not wait for it
    if outcome is LeaseOutcome.UNKNOWN:
        return _over(options)
    fields = {"domain": options.domain, "outcome": outcome}
    given_back = outcome in (LeaseOutcome.RELINQUISHED, LeaseOutcome.WITHDRAWN, LeaseOutcome.DROPPED)
    said = f"{options.domain}: {outcome}"
    return present(options, "tenure.lease-ended", fields, said, status=0 if given_back else EXIT_NO)


def _revoke(_cluster: Cluster, hand: ByHand, options: Namespace) -> int:
    view = _the_one(hand, options)
    if view is None:
        return _over(options)
    reason = _confirmed(view, options)
    outcome, ending = hand.revoke(view, reason)
    fields = {
        "domain": view.domain,
        "outcome": outcome,
        "reason": reason,
        "lease": lease_fields(view),
        **instant_fields("ended", None if ending is None else ending.ended_ns),
    }
    lines = [f"{view.domain}: {outcome}"]
    if outcome is LeaseOutcome.REVOKED:
        lines = [
            f"{view.domain}: revoked. What {_who(view)} writes with timestamps up to",
            f"{rfc3339(view.expiry_ns)} still counts; the next holder waits for that before it reads or writes.",
        ]
    ended = outcome in (LeaseOutcome.REVOKED, LeaseOutcome.WITHDRAWN)
    return present(options, "tenure.lease-ended", fields, *lines, status=0 if ended else EXIT_NO)


def _confirmed(view: LeaseView, options: Namespace) -> str:
    """Return the reason, once the name was given again. Raises BadRequest."""
    name, reason = options.yes, options.reason
    if name is None or reason is None:
        if not sys.stdin.isatty():
            what = f"the lease on {view.domain!r} is that of {_who(view)}; nobody is here to confirm its end"
            raise BadRequest("not-confirmed", what, hint="--yes DOMAIN --reason TEXT")
        until = rfc3339(view.expiry_ns)
        whose = printable(f"{view.domain}: {view.mode} {view.phase} of {_who(view)} ({view.holder.purpose})")
        note(f"{whose}, until {until} as yet")
        name = _typed("its name, to revoke it: ") if name is None else name
        reason = _typed("the reason: ") if reason is None else reason
    if name != view.domain:
        raise BadRequest("not-confirmed", f"{name!r} is not {view.domain!r}: nothing was revoked", hint="type the name")
    return str(reason)


def _typed(question: str) -> str:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().rstrip("\n")


def _over(options: Namespace, view: LeaseView | None = None) -> int:
    """Say that there is no such lease, or when the one there was expired; return the exit code."""
    outcome = LeaseOutcome.UNKNOWN if view is None else LeaseOutcome.EXPIRED
    why = "there is no such lease (any more)" if view is None else f"expired at {rfc3339(view.expiry_ns)}"
    fields = {"domain": options.domain, "outcome": outcome}
    return present(options, "tenure.lease-ended", fields, f"{options.domain}: {why}", status=EXIT_NO)


def _shown(witness: Witness, granted_ns: Span, options: Namespace) -> int:
    lease, session = witness.correlation_id.hex(), None if witness.session_id is None else witness.session_id.hex()
    fields = {
        "domain": witness.domain,
        "mode": witness.mode,
        "correlation_id": lease,
        "fence": str(witness.fence),
        **instant_fields("expiry", witness.expiry_ns),
        **bound_fields("settle_to", witness.settle_to_ns),
        "session_id": session,
        **_term_fields(options, granted_ns),
    }
    under = "" if session is None else f", session {session}"
    held = f"held, mode {witness.mode}, fence {witness.fence}, lease {lease}, until {rfc3339(witness.expiry_ns)}{under}"
    return present(options, "tenure.held", fields, f"{witness.domain}: {held}")


_DOMAIN: Final = argument("domain DOMAIN", type=check_domain)
_LEASE: Final = argument("--lease ID", "this one, by its correlation id (default: the only one)")
_TERM: Final = argument("--term SPAN", "how long (default: the policy's longest term)")


def _mode(help_text: str) -> Argument:
    return argument("--mode", help_text, default="X", choices=[str(mode) for mode in Mode])


def _by_hand(summary: str, work: Callable[[Cluster, ByHand, Namespace], int], *own: Argument) -> Command:
    def run(cluster: Cluster, options: Namespace) -> int:
        return work(cluster, ByHand(cluster, cluster.chance()), options)

    return cluster_command(summary, run, _DOMAIN, *own)


_VERBS: Final = {
    "ls": cluster_command("all leases of all shards; exit 69 if one did not answer", _list),
    "show": cluster_command("one domain: held by whom, until when; exit 1 if nobody has it", _show, _DOMAIN),
    "hold": cluster_command(
        "hold domains for a while: for trying things out",
        _hold,
        argument("domains DOMAIN", nargs="+"),
        _mode("X, or shared with others: S, IX, IS, SIX (default X)"),
        argument("--seconds S", "how long (default 10)", default="10"),
        argument("--wait SPAN", "how long to wait for them (default 30s)", default="30s"),
        argument("--purpose TEXT", default="lease hold"),
        argument("--session", "under session leases: one renewal a shard keeps them all"),
    ),
    "watch": cluster_command(
        "one domain: each change of its leases, as it happens",
        run_watch,
        _DOMAIN,
        argument("--seconds S", "how long (default: until it is interrupted)"),
    ),
    "acquire": _by_hand(
        "take a lease that no process keeps; renew it, or it ends with its term",
        _acquire,
        _mode("default X"),
        argument("--wait SPAN", "how long to wait for it (default: not at all)", default="0s"),
        argument("--purpose TEXT", default="lease acquire"),
        argument(
            "--session ID",
            "under this session lease of the domain's shard, or `new`: one `lease renew` keeps all that is under it",
        ),
        _TERM,
    ),
    "renew": _by_hand("give a lease that was taken by hand another term; exit 1 if it is over", _renew, _TERM, _LEASE),
    "relinquish": _by_hand(
        "give back a lease that was taken by hand; exit 1 if it was over",
        _relinquish,
        argument("--whole-session", "the session lease that it is under, with every lease under it"),
        _LEASE,
    ),
    "revoke": _by_hand(
        "end somebody's lease; asks for its name and a reason",
        _revoke,
        _LEASE,
        argument("--yes DOMAIN", "the name again, instead of typing it: for scripts"),
        argument("--reason TEXT", "why: at most 128 bytes, kept in the ledger for ever"),
    ),
}
COMMANDS: Final = {"lease": with_verbs("Who holds what; holding a lease from a shell.", _VERBS)}
