"""What this machine brings: user, memory that forgets, randomness, addresses. Pure judgements; its clock: health.py."""

from __future__ import annotations

import stat

from .check import HealthCheck, failed, passed, unsure


def judge_user(user: int, umask: int) -> list[HealthCheck]:
    """Say whether this user's files can be shared, and modes mean something to it."""
    if user == 0:
        found = [
            failed(
                "user",
                "this is the superuser, whom no file mode stops, and whom root_squash makes nobody",
                "run it as the user that runs the node (tenure); --allow-root in throw-away machines",
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


def judge_runtime(where: str, kind: str) -> HealthCheck:
    """Say whether a shard's database would forget."""
    if kind not in ("tmpfs", "ramfs"):
        return failed(
            "tmpfs",
            f"{where} is on {kind}: a lease shard must forget everything when the machine stops",
            "mount a tmpfs there, or set runtime in node.toml",
        )
    return passed("tmpfs", f"{where} is on {kind}")


def judge_randomness(*, ready: bool) -> HealthCheck:
    """Say whether keys made now would be keys."""
    if not ready:
        return failed(
            "randomness", "the kernel has not gathered any yet", "wait for it, or give the machine virtio-rng"
        )
    return passed("randomness", "the kernel's generator is ready")


def judge_listening(address: str, problem: str | None) -> HealthCheck:
    """Say whether the node can answer where its settings say."""
    if problem:
        return failed("port", f"{address}: {problem}", "change `listen` in node.toml, or stop who listens there")
    return passed("port", f"{address} is the node's, or free for it")
