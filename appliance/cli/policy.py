"""``tenure policy``: the numbers that the whole cluster shares, and changing them with the root key."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from appliance.cluster import Cluster
from timeagent.console import argument, note, present, with_verbs
from timeagent.errors import BadRequest
from timeagent.units import parse_span, span_text

from ..admin.founding import next_policy, publish_policy
from ..formats.policy import Policy
from .opening import cluster_command, root_key

_WORDS: Final = {
    "span_ns": "span of the bags of logs that are made from now on",
    "grace_ns": "how long after its end a bag of such a log stays open",
    "rack_ns": "length of a rack of such a log",
    "seal_delay_ns": "from a rack's end to its sealing",
    "radius_ns_max": "a clock known less well neither grants nor writes",
    "assumed_radius_ns": "radius of a clock that nothing measures; 0: none",
    "r1_tolerance_ns": "how far a timestamp may be from its signed time",
    "lease_term_max_ns": "longest term of a lease",
    "renew_period_ns": "how often a holder renews",
    "holder_margin_ns": "how long before the expiry a holder stops",
    "attempt_timeout_ns": "how long one request to a shard may take",
    "batch_ns_max": "how long a writer may gather messages",
    "ceiling_ahead_ns": "how far beyond the longest term a ceiling lies",
    "ceiling_period_ns": "how often a ceiling is extended",
}


def _option(name: str) -> str:
    """Return a number's name on the command line: ``radius_ns_max`` is ``radius-max``."""
    return name.replace("_ns", "").replace("_", "-")


def _show(cluster: Cluster, options: Namespace) -> int:
    newest = cluster.registers.newest_policy()
    number = newest.number if options.number is None else options.number
    if not 1 <= number <= newest.number:
        raise BadRequest(
            "no-such-policy", f"there is no policy {number}", hint=f"they are numbered from 1 to {newest.number}"
        )
    policy = cluster.registers.policy(number)
    derived = _derived(policy)
    return present(
        options,
        "tenure.policy",
        {"number": number}
        | {name: getattr(policy, name) for name in _WORDS}
        | {f"{word}_ns": span for word, (span, _) in derived.items()}
        | {"newest": newest.number},
        f"policy {number}" + ("" if number == newest.number else f" of {newest.number}"),
        *(f"  {_option(name):16}  {span_text(getattr(policy, name)):>9}  {what}" for name, what in _WORDS.items()),
        *(f"  {word:16}  {span_text(span):>9}  {what}" for word, (span, what) in derived.items()),
    )


def _derived(policy: Policy) -> dict[str, tuple[int, str]]:
    return {
        "takeover": (policy.takeover_ns(), "how long a dead holder's domains are blocked, at most"),
        "restart": (policy.restart_ns(), "how long the domains of a shard that died are blocked, at most"),
    }


def _set(cluster: Cluster, options: Namespace) -> int:
    changes = {name: parse_span(text) for name in _WORDS if (text := getattr(options, name)) is not None}
    if not changes:
        raise BadRequest("nothing-to-set", "no number is named", hint="tenure policy show names them all")
    if options.root_key is None and not options.dry_run:
        raise BadRequest(
            "no-root-key", "the root key signs a policy", hint="say --root-key FILE; with --dry-run nothing is changed"
        )
    before = cluster.registers.newest_policy()
    policy = next_policy(before, changes)
    changed = {name for name in changes if getattr(before, name) != getattr(policy, name)}
    if changed and not options.dry_run:
        publish_policy(cluster.registers, root_key(cluster, options), policy)
    said = {name: (getattr(before, name), getattr(policy, name)) for name in sorted(changed)}
    words = [f"{_option(name)} {span_text(was)} -> {span_text(now)}" for name, (was, now) in said.items()]
    present(
        options,
        "tenure.policy-changed",
        {
            "number": policy.number,
            "dry_run": options.dry_run,
            "changed": {name: {"before_ns": was, "after_ns": now} for name, (was, now) in said.items()},
        },
        f"Policy {policy.number}{' would be' if options.dry_run else ''}: {', '.join(words)}."
        if changed
        else f"Policy {before.number} says so already: nothing is changed.",
    )
    if not options.json and before.takeover_ns() != policy.takeover_ns():
        note(f"tenure: a dead holder's domains are blocked for {span_text(policy.takeover_ns())} at most")
    return 0


_VERBS: Final = {
    "show": cluster_command(
        "the policy's numbers, and what they come to",
        _show,
        argument("--number", type=int, metavar="N", help="an earlier one (default: the newest)"),
    ),
    "set": cluster_command(
        "publish the next policy, which running processes take up by themselves",
        _set,
        *(argument(f"--{_option(name)}", dest=name, metavar="SPAN", help=words) for name, words in _WORDS.items()),
        argument("--root-key", metavar="FILE", help="the cluster's root key"),
        argument("--dry-run", action="store_true", help="only say what would change; needs no root key"),
    ),
}
COMMANDS: Final = {"policy": with_verbs("The numbers that the whole cluster shares.", _VERBS)}
