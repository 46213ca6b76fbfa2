"""``tenure policy``: the numbers that the whole cluster shares, and changing them with the root key."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from appliance.cli.opening import add_cluster_options, open_cluster, root_key
from timeagent.console import Command, note, print_json, say
from timeagent.units import parse_span, span_text

if TYPE_CHECKING:
    from appliance.cluster import Cluster
    from appliance.formats.policy import Policy

_WORDS: Final = {
    "span_ns": "span of the bags of logs that are made from now on",
    "grace_ns": "how long after its end a bag of such a log stays open",
    "rack_ns": "length of a rack of such a log",
    "seal_delay_ns": "from a rack's end to its sealing",
    "radius_ns_max": "a clock known less well neither grants nor writes",
    "assumed_radius_ns": "radius of a clock that nothing measures, for processes that start from now on; 0: none",
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


def _add_policy(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    show = verbs.add_parser("show", help="the policy's numbers, and what they come to")
    show.add_argument("--number", type=int, metavar="N", help="an earlier one (default: the newest)")
    change = verbs.add_parser("set", help="publish the next policy, which running processes take up by themselves")
    for name, words in _WORDS.items():
        change.add_argument(f"--{_option(name)}", dest=name, metavar="SPAN", help=words)
    change.add_argument("--root-key", metavar="FILE", help="the cluster's root key")
    change.add_argument("--dry-run", action="store_true", help="only say what would change; needs no root key")
    for verb in (show, change):
        add_cluster_options(verb)


def run_policy(options: argparse.Namespace) -> int:
    """Run one verb."""
    with open_cluster(options) as cluster:
        return _show(cluster, options) if options.verb == "show" else _set(cluster, options)


def _show(cluster: Cluster, options: argparse.Namespace) -> int:
    from timeagent.errors import BadRequest

    newest = cluster.registers.newest_policy()
    number = newest.number if options.number is None else options.number
    if not 1 <= number <= newest.number:
        raise BadRequest(
            "no-such-policy", f"there is no policy {number}", hint=f"they are numbered from 1 to {newest.number}"
        )
    policy = cluster.registers.policy(number)
    if options.json:
        print_json("tenure.policy", _fields(policy) | {"newest": newest.number})
        return 0
    say(f"policy {number}" + ("" if number == newest.number else f" of {newest.number}"))
    for name, words in _WORDS.items():
        say(f"  {_option(name):16}  {span_text(getattr(policy, name)):>9}  {words}")
    for word, span in _derived(policy).items():
        say(f"  {word:16}  {span_text(span):>9}  {_DERIVED[word]}")
    return 0


_DERIVED: Final = {
    "takeover": "how long a dead holder's domains are blocked, at most",
    "restart": "how long the domains of a shard that died are blocked, at most",
}


def _derived(policy: Policy) -> dict[str, int]:
    return {"takeover": policy.takeover_ns(), "restart": policy.restart_ns()}


def _fields(policy: Policy) -> dict[str, Any]:
    derived = {f"{word}_ns": span for word, span in _derived(policy).items()}
    return {"number": policy.number} | {name: getattr(policy, name) for name in _WORDS} | derived


def _set(cluster: Cluster, options: argparse.Namespace) -> int:
    from timeagent.errors import BadRequest

    from ..admin.records import next_policy, publish_policy

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
    if options.json:
        said = {
            name: {"before_ns": getattr(before, name), "after_ns": getattr(policy, name)} for name in sorted(changed)
        }
        print_json("tenure.policy-changed", {"number": policy.number, "dry_run": options.dry_run, "changed": said})
        return 0
    if not changed:
        say(f"Policy {before.number} says so already: nothing is changed.")
        return 0
    words = [
        f"{_option(n)} {span_text(getattr(before, n))} -> {span_text(getattr(policy, n))}" for n in sorted(changed)
    ]
    say(f"Policy {policy.number}{' would be' if options.dry_run else ''}: {', '.join(words)}.")
    if before.takeover_ns() != policy.takeover_ns():
        note(f"tenure: a dead holder's domains are blocked for {span_text(policy.takeover_ns())} at most")
    return 0


COMMANDS: Final = {"policy": Command("The numbers that the whole cluster shares.", _add_policy, run_policy)}
