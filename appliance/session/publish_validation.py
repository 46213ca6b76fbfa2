"""Validation of what callers hand to a session, before anything is done: by value, rule and way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from appliance.formats.frame import LEASES_MAX, check_payloads
from appliance.formats.lease import Mode
from appliance.formats.names import check_domain
from appliance.formats.policy import PolicyNumbers
from timeagent.errors import (
    BadRequest,
    check_type,
)
from timeagent.units import Seconds, Span, span_of, span_text

from .held import KEPT, Lease, Recall


def checked_batch(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the batch, to be changed by nobody. Raises BadRequest before anything is written."""
    several = isinstance(payloads, Iterable) and not isinstance(payloads, bytes | str)
    batch = list(payloads) if several else []
    if not several or not all(isinstance(payload, bytes) for payload in batch):
        raise BadRequest(
            "bad-payloads", "the payloads are not a list of bytes", hint="publish(log, [b'...'], under=leases)"
        )
    check_payloads(batch)
    return batch


def check_covering(leases: Sequence[Lease]) -> None:
    """Refuse leases under which nothing can be published: too many at once, or readers'."""
    if len(leases) > LEASES_MAX:
        raise BadRequest(
            "too-many-leases",
            f"a batch under {len(leases)} leases exceeds the limit of {LEASES_MAX}",
            hint="publish under fewer leases at once, or take one lease that covers them",
        )
    for lease in leases:
        if not lease.mode.may_write:
            raise BadRequest(
                "mode-may-not-write",
                f"the lease on {lease.domain!r} is in mode {lease.mode}: readers reject what is written under it",
                hint="acquire it in mode X, SIX or IX, or upgrade it",
            )


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


def wanted_modes(domains: Iterable[str], mode: Mode | str | Mapping[str, Mode]) -> dict[str, Mode]:
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
