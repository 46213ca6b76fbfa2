"""A bag that its rack's seal does not name: whether its lock file proves that it had been closed before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.framing import Kind
from appliance.formats.lockfile import open_lock
from appliance.formats.paths import LOCK
from timeagent.errors import Damaged

from .finding import Evidence
from .load import PIECE_BYTES_MAX
from .rules import bags as bag_rules
from .rules.signatures import stamp_findings

if TYPE_CHECKING:
    from .finding import Finding
    from .load import BagListing, Tree
    from .records import ClusterRecords
    from .seals import SealFacts
    from .verification import Signatures


def hidden_bag(
    tree: Tree, records: ClusterRecords, signatures: Signatures, listing: BagListing, seal: SealFacts
) -> list[Finding]:
    """hidden-bag, or nothing. A lock file that does not hold proves nothing: the bag does not exist."""
    path = f"{listing.bag.path}/{LOCK}"
    raw = tree.read(path, PIECE_BYTES_MAX + 1) if listing.locked else None
    if raw is None:
        return []
    try:
        lock, stamped = open_lock(raw, path)
    except Damaged:
        return []
    where = Evidence(path, 0, len(raw))
    keyring = records.keyring(lock.trust_number)
    token, wrong = stamp_findings(signatures, keyring, Kind.LOCK, stamped, lock.closer, where)
    if keyring is None or wrong or bag_rules.misplaced_lock(lock, listing.bag, records.cluster_id):
        return []
    sealable = records.sealable_ns(listing.bag.rack)
    return list(bag_rules.hidden_bag(listing.bag, lock, (token, seal.token), sealable, [where, seal.where]))
