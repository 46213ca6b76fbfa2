"""Wrong versions of what bounds a shard's memory, the time that a lease is kept, and who may act outside the record."""

from __future__ import annotations

from appliance.lease import whole_shard
from appliance.session import held, leasing, renewal, session
from tests.simulation.mutant import Mutant, one

BOUNDS: tuple[Mutant, ...] = (
    Mutant(
        "what is evicted leaves the shard floor where it is",
        one(
            whole_shard,
            "Eviction.evict",
            "max(self.floor_ns, newest)",
            "self.floor_ns",
        ),
        "witnesses",
        "evictions",
    ),
    Mutant(
        "what is evicted leaves the shard's settle_to where it is",
        one(whole_shard, "Eviction.evict", "max(self.settle_to_ns, memory.settle_to_ns)", "self.settle_to_ns"),
        "witnesses",
        "evictions",
    ),
    Mutant(
        "a domain that comes back does not know the shard floor",
        one(whole_shard, "Eviction.memory", "fence=0, floor_ns=self.floor_ns", "fence=0, floor_ns=0"),
        "witnesses",
        "evictions",
    ),
    Mutant(
        "a cap on how long a lease is kept is forgotten at renewals",
        (
            (renewal, "LeaseRenewer._is_wanted", "if lease.until_ns is not None and", "if lease.until_ns == 0 and"),
            (leasing, "_caps", "if cap is not None", "if cap == 0"),
        ),
        "bounded",
        "bounds",
    ),
    Mutant(
        "a lease is renewed though its holder does not get on",
        (
            (
                renewal,
                "LeaseRenewer._is_wanted",
                "boot_ns - lease.progress_boot_ns >",
                "lease.progress_boot_ns - boot_ns >",
            ),
            (
                held,
                "Lease.cap_ns",
                "(within := self.progress_within_ns) is None",
                "[within := self.progress_within_ns] and self.until_ns is None",
            ),
        ),
        "bounded",
        "bounds",
    ),
    Mutant(
        "a holder that stood still before it asked is renewed for a whole term from then",
        one(
            held,
            "Lease.cap_ns",
            "(within := self.progress_within_ns) is None",
            "[within := self.progress_within_ns] and self.until_ns is None",
        ),
        "bounded",
        "bounds",
        20005881,
    ),
    Mutant(
        "who says nothing of what it does under a lease is taken to write messages only",
        one(session, "Session.acquire", "record_only: bool=False", "record_only: bool=True"),
        "alone",
        "outside",
    ),
)
