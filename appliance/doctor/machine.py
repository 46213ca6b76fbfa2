"""What this machine brings: user, memory that forgets, clock, randomness, addresses. Pure judgements."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final

from timeagent.units import MS, span_text

from .check import Check, failed, passed, unsure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from timeagent.units import Span

RADIUS_NS_MAX: Final = 250 * MS
"""What the default policy allows."""


def judge_user(user: int, umask: int) -> list[Check]:
    """Say whether this user's files can be shared, and modes mean something to it."""
    if user == 0:
        found = [
            failed(
                "user",
                "this is the superuser, whom no file mode stops, and whom root_squash makes nobody",
                "run it as the user that runs the node (leasehold); --allow-root in throw-away machines",
            )
        ]
    else:
        found = [passed("user", f"user {user}")]
    if umask & stat.S_IWGRP:
        return [
            *found,
            unsure(
                "umask",
                f"{umask:04o}: other users of the group could not write to new directories",
                "umask 002 (UMask=0002 in a unit), unless all processes run as one user",
            ),
        ]
    return [*found, passed("umask", f"{umask:04o}")]


def judge_runtime(where: str, kind: str) -> Check:
    """Say whether a shard's database would forget."""
    if kind not in ("tmpfs", "ramfs"):
        return failed(
            "tmpfs",
            f"{where} is on {kind}: a lease shard must forget everything when the machine stops",
            "mount a tmpfs there, or set runtime in node.toml",
        )
    return passed("tmpfs", f"{where} is on {kind}")


ASSUMED_WORDS: Final = "assumed: the policy states it, nothing measures it"
"""Of a radius that ``init --assume-radius`` put into the policy: right where all processes share one clock."""


def judge_clock(radius: Span | None, why: str, source: str, radius_max: Span = RADIUS_NS_MAX) -> Check:
    """Say whether this machine's clock has a bound. ``radius``: None where nothing bounds it, and ``why``."""
    if radius is None:
        way_out = "run chrony with rtcsync, or the time agent: leasehold time run; or state one: init --assume-radius,"
        way_out += " and of a cluster that is there policy set --assumed-radius"
        return failed("clock", f"no bound: {why}", way_out)
    if radius > radius_max:
        return failed(
            "clock",
            f"known to {span_text(radius)} ({source}); the policy allows {span_text(radius_max)}",
            "leasehold time sources says what each source knows",
        )
    return passed("clock", f"known to {span_text(radius)} ({source})")


def judge_randomness(*, ready: bool) -> Check:
    """Say whether keys made now would be keys."""
    if not ready:
        return failed(
            "randomness", "the kernel has not gathered any yet", "wait for it, or give the machine virtio-rng"
        )
    return passed("randomness", "the kernel's generator is ready")


def judge_reached(answers: Sequence[str], silent: Mapping[str, str]) -> Check:
    """Say which nodes with an address take a connection. ``silent``: where those that do not should."""
    if silent:
        where = ", ".join(f"{node} at {address}" for node, address in sorted(silent.items()))
        return unsure(
            "other nodes",
            f"{len(answers)} answer; no answer from {where}",
            "is leasehold-node running there, and may this machine reach that port? leasehold trust move corrects it",
        )
    return passed(
        "other nodes", f"{len(answers)} answer" if answers else "no other has an address and a key that counts"
    )


def judge_releases(known: Mapping[str, str | None]) -> Check:
    """Say whether all nodes run one release. ``known``: by node; None for one that does not answer."""
    told = {node: release for node, release in known.items() if release is not None}
    words = ", ".join(f"{node} {release}" for node, release in sorted(told.items()))
    if len(set(told.values())) > 1:
        return unsure(
            "releases",
            f"nodes run different ones: {words}",
            "finish the upgrade: leasehold node upgrade, one node after the other",
        )
    return passed("releases", words or "no node says")


def judge_listening(address: str, problem: str | None) -> Check:
    """Say whether the node can answer where its settings say."""
    if problem:
        return failed("port", f"{address}: {problem}", "change `listen` in node.toml, or stop who listens there")
    return passed("port", f"{address} is the node's, or free for it")
