"""The next policy of a cluster, signed by the root key (docs/operators.md).

There is no instant from which a policy counts, and nobody has to acknowledge it: each process takes it up when it sees
it (``record_watch.py``), and each frame is judged by the policy that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from timeagent.errors import TryAgain
from timeagent.keys import Signer

from ..formats.framing import Kind
from ..formats.policy import Policy, check_policy
from ..node.records import Registers

SPANS: Final = tuple(name for name in Policy.__struct_fields__ if name not in ("number", "cluster_id"))
"""What a policy says, all of it in nanoseconds, in the order of the record."""


def next_policy(newest: Policy, changes: Mapping[str, int]) -> Policy:
    """Return the policy that comes after one, or the same one if nothing would change.

    ``changes``: new values of some of SPANS. Raises BadConfiguration, naming both values, if a relation fails.
    """
    assert set(changes) <= set(SPANS)
    if all(getattr(newest, name) == value for name, value in changes.items()):
        return newest
    return check_policy(msgspec.structs.replace(newest, number=newest.number + 1, **changes))


def publish_policy(registers: Registers, root_key: Signer, policy: Policy) -> None:
    """Link a policy under its number. Touches the mount. Raises TryAgain if somebody else has taken that number."""
    if not registers.publish(Kind.POLICY, policy, root_key):
        raise TryAgain(
            "policy-changed",
            f"somebody else has published policy {policy.number} meanwhile",
            hint="look at it with tenure policy show, then decide anew",
        )
