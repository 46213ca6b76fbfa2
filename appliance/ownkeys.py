"""Whether the cluster believes what this node signs: asked when a root is opened, and as long as a process signs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.errors import BadTime, NotTrusted
from timeagent.keys import fingerprint
from timeagent.trust import Purpose

if TYPE_CHECKING:
    from timeagent.clock import NodeTime

    from .registers import Registers
    from .settings import Settings


def check_own_keys(registers: Registers, settings: Settings) -> None:
    """Raise NotTrusted unless the newest trust record knows this node's own keys. Touches the mount."""
    keyring = registers.keyring(registers.newest().trust)
    for key in (settings.time_key(), settings.witness_key(), settings.tls_key()):
        owner = keyring.node_of(key.id)
        if owner != settings.node:
            raise NotTrusted(
                "key-not-trusted",
                f"the key {fingerprint(key.public)} of {settings.directory} is "
                + (f"that of node {owner}" if owner else "not in the cluster's trust record"),
                hint="join the cluster with this node directory",
            )


def check_trusted_now(registers: Registers, settings: Settings, time: NodeTime) -> None:
    """Raise NotTrusted if the newest trust record refuses what this process signs, as of its own time.

    So it is after a revocation, or a rotation that this process did not take up. Without usable time nothing can be
    signed, and nothing is said. Touches the mount.
    """
    try:
        token = time.token()
    except BadTime:
        return
    keyring = registers.keyring(registers.newest().trust)
    at = token.midpoint_ns
    reason = keyring.refuses(token.key_id, Purpose.TIME, at)
    reason = reason or keyring.refuses(settings.witness_key().id, Purpose.WITNESS, at)
    if reason:
        raise NotTrusted(
            "key-not-trusted",
            f"what this node signs is accepted by nobody: {reason}",
            hint="after a rotation start the node's processes again; revoked ones stay so: trust rotate makes others",
        )
