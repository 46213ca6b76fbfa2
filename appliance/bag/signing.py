"""What a node signs for ever: the birth of a log, the list of a bag, the seal of a rack.

Readers believe what was linked first, whoever linked it: otherwise a list by a revoked node could not be told from a
bag that is still open, and no other could take its place. So a node whose key is refused by now signs no list. It
leaves what it has begun to the others, as if it had died there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.stamped import stamp_and_time
from timeagent.errors import NotTrusted
from timeagent.trust import Purpose

if TYPE_CHECKING:
    from appliance.formats.framing import Kind
    from timeagent.clock import NodeTime
    from timeagent.trust import Keyring


def signed_for_ever(kind: Kind, body: bytes, time: NodeTime, keyring: Keyring) -> bytes:
    """Return the whole file, with a signed time made now over the encoded body. Raises BadTime.

    ``body``: what ``encode_for_ever`` has returned: it was read once as everybody will read it.
    ``keyring``: of the newest trust record. Raises NotTrusted if that refuses this node's key: the audit would.
    """
    raw, token = stamp_and_time(kind, body, time)
    reason = keyring.refuses(token.key_id, Purpose.TIME, token.midpoint_ns)
    if reason:
        raise NotTrusted(
            "key-not-trusted",
            f"this node may not sign for the cluster: {reason}",
            hint="tenure trust rotate makes the next keys; what is revoked stays so: tenure trust ls",
        )
    return raw
