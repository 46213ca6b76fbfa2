"""Wrong versions of steps in leases, shards and sessions. Each names the checker that kills it."""

from __future__ import annotations

from appliance.bag import reader
from appliance.lease import ceiling, connection, decisions, domain, shard
from appliance.lease import store as store_module
from appliance.session import held, leasing, recalls, session, stamping
from tests.simulation.mutant import Mutant, one

LEASES: tuple[Mutant, ...] = (
    Mutant(
        "a log is not settled before its first use",
        one(session, "Session._settle_for", "if book.horizon.reached < target:", "if book.horizon.reached < 0:"),
        "complete",
        "sleepers",
    ),
    Mutant(
        "another log than the one in use is settled",
        one(
            session,
            "Session._settle_for",
            "book.horizon.settle(target, progress=lambda _: self._renew_meanwhile(leases))",
            "self._logs.opened('beta').horizon.settle(target, progress=lambda _: self._renew_meanwhile(leases))",
        ),
        "complete",
        "sleepers",
    ),
    Mutant(
        "a latest reading leaves out the bags that are open",
        one(reader, "Reader._open_bag", "for _ in range(_TRIES):", "for _ in range(_TRIES):\n    return"),
        "money",
        "leases",
    ),
    Mutant(
        "the floor is not cumulative",
        one(decisions, "end_lease", "max(before.floor_ns, floor)", "floor"),
        "witnesses",
        "leases",
    ),
    Mutant(
        "settle_to is forgotten by the next ending",
        one(decisions, "end_lease", "max(before.settle_to_ns, settle_to)", "settle_to"),
        "witnesses",
        "leases",
    ),
    Mutant(
        "a broken lease moves no floor",
        one(
            decisions,
            "broken",
            "(lease.expiry_ns, lease.expiry_ns)",
            "(0, lease.expiry_ns)",
        ),
        "endings",
        "stalls",
    ),
    Mutant(
        "a broken lease moves no settle_to",
        one(
            decisions,
            "broken",
            "(lease.expiry_ns, lease.expiry_ns)",
            "(lease.expiry_ns, 0)",
        ),
        "endings",
        "stalls",
    ),
    Mutant(
        "an expiry is compared with the wrong end of the interval",
        one(decisions, "_breakable", "bounds.now.surely_past(lease.expiry_ns)", "lease.expiry_ns <= bounds.now.latest"),
        "endings",
        "handover",
    ),
    Mutant(
        "a lease is granted to another shortly before it is over",
        one(
            decisions,
            "_breakable",
            "return wounds or bounds.now.surely_past(lease.expiry_ns)",
            "return wounds or bounds.now.surely_past(lease.expiry_ns - 3 * 10**8)",
        ),
        "overlap",
        "handover",
    ),
    Mutant(
        "a held lease is taken from its holder by an older request",
        one(
            decisions,
            "_breakable",
            "wounds = lease.phase is Phase.TENTATIVE and age < lease.age",
            "wounds = age < lease.age",
        ),
        "overlap",
        "leases",
    ),
    Mutant(
        "a lease is given back without its watermark",
        one(
            leasing,
            "_giving",
            "wire.Relinquish(wire.NO_REQUEST, lease.domain, lease.correlation_id, lease.watermark_ns, "
            "lease.watermark_time, lease.messages, lease.chain_head, lease.unsaid() or NOTHING_WRITTEN)",
            "wire.Relinquish(wire.NO_REQUEST, lease.domain, lease.correlation_id)",
        ),
        "exclusion",
        "stalls",
    ),
    Mutant(
        "a lease is given back while an outcome is unknown",
        (
            (
                session,
                "Session._give_back",
                "self._leasing.relinquish(mine, until_boot_ns, doubtful)",
                "self._leasing.relinquish(mine, until_boot_ns)",
            ),
            (session, "Session._give_back", "self._resolve_before_end(mine, until_boot_ns)", "pass"),
        ),
        "complete",
        "recalls",
    ),
    Mutant(
        "timestamps do not mind the floor",
        one(
            stamping,
            "FrameStamper._first_timestamp",
            "floors = [lease.floor_ns for lease in leases]",
            "floors = [0 for lease in leases]",
        ),
        "bug",
        "stalls",
    ),
    Mutant(
        "a lease that has run out is written under",
        (
            (
                held,
                "Lease.end_if_over",
                "if self.ended is None and (not now.surely_before(self.usable_until_ns(margin_ns))):",
                "if self.ended is None and now.surely_past(self.expiry_ns + 10**10):",
            ),
            (stamping, "FrameStamper._first_timestamp", "if start + count > lease.expiry_ns:", "if start < 0:"),
        ),
        "published",
        "stalls",
    ),
    Mutant(
        "what is in doubt is said not to be there",
        one(session, "Session.resolve", "outcome = self._decide(publication, None)", "outcome = NotCommitted('')"),
        "published",
        "stalls",
    ),
    Mutant(
        "a lease is granted beyond the ceiling",
        one(domain, "Bounds.expiry", "self.ceiling_ns", "2**62"),
        "witnesses",
        "leases",
    ),
    Mutant(
        "grants reach to a ceiling record that is not linked yet",
        one(
            ceiling,
            "CeilingChain._link",
            "pending = self._pending",
            "pending = self._pending\n"
            "self.number, self.ceiling_ns = (pending.record.number, pending.record.ceiling_ns)",
        ),
        "witnesses",
        "leases",
    ),
    Mutant(
        "EEXIST on a ceiling record is ignored",
        one(
            ceiling,
            "link_record",
            "taken = not port.link(number, data) and (must_win or port.read(number) != data)",
            "port.link(number, data)\ntaken = False",
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "a ceiling falls",
        one(
            ceiling,
            "CeilingChain._next_record",
            "ceiling = max(ceiling, self._time.now().latest + ahead)",
            "ceiling = self._time.now().latest + ahead",
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "nobody looks for a higher number after linking a ceiling record",
        (
            (ceiling, "look_for", "if numbers and numbers[-1] > number:", "if not numbers:"),
            (ceiling, "CeilingChain._link_and_look", "each <= number - RECORDS_KEPT", "each <= number - 1"),
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "a successor begins at the floor of the run before, not at its ceiling",
        one(
            ceiling,
            "_after",
            "record.kind is CeilingKind.RUNNING",
            "False",
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "a successor holds the newest record against the number of its own",
        one(
            ceiling,
            "ceiling_of",
            "if found != (cluster_id, map_number, shard, number):",
            "if found != (cluster_id, map_number, shard, number + 1):",
        ),
        "damage",
        "contenders",
    ),
    Mutant(
        "an orderly record is written while leases are out",
        one(shard, "Shard._link_end", "until is not None", "until == 0"),
        "endings",
        "contenders",
    ),
    Mutant(
        "an orderly record does not say the fences",
        one(
            shard,
            "Shard._link_end",
            "max(floor, fence, self._eviction.floor_ns, alone)",
            "max(floor, self._eviction.floor_ns, alone)",
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "an orderly record does not say the floors",
        one(
            shard,
            "Shard._link_end",
            "max(floor, fence, self._eviction.floor_ns, alone)",
            "self._eviction.floor_ns",
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "who was deposed keeps its state and grants on",
        one(
            ceiling,
            "CeilingChain._depose",
            "self.deposed, self.ceiling_ns = (Deposed(f'{reason}; the right to grant {ended}'), 0)\n"
            "return self.deposed",
            "return Deposed(reason)",
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "a fence is the clock's",
        one(
            decisions,
            "_fence",
            "max(memory.fence, bounds.shard_floor_ns, bounds.now.midpoint) + 1",
            "bounds.now.midpoint",
        ),
        "witnesses",
        "leases",
    ),
    Mutant(
        "a lease that is over blocks its domain for longer",
        one(
            decisions,
            "_breakable",
            "return wounds or bounds.now.surely_past(lease.expiry_ns)",
            "return wounds or bounds.now.surely_past(lease.expiry_ns + 6 * 10**9)",
        ),
        "waits",
        "deaths",
    ),
    Mutant(
        "a lease that is over blocks its domain for ever",
        one(
            decisions,
            "_breakable",
            "return wounds or bounds.now.surely_past(lease.expiry_ns)",
            "return wounds",
        ),
        "waits",
        "deaths",
    ),
    Mutant(
        "a shard begins with what the one before remembered",
        one(
            store_module,
            "LeaseStore.__init__",
            "self.leases = 0",
            "self.leases = 1",
        ),
        "empty",
        "leases",
    ),
    Mutant(
        "a recalled lease is given back with a watermark below what was written",
        one(
            recalls,
            "RecallListener._answer",
            "self._give_back(back)",
            "for each in back:\n"
            "    each.watermark_ns = each.watermark_time = each.chain_head = None\n"
            "    each.messages = 0\n"
            "self._give_back(back)",
        ),
        "exclusion",
        "recalls",
    ),
    Mutant(
        "a recalled lease is given back while its holder goes on",
        (
            (recalls, "RecallListener._answer", "lease.lose('recalled', LossReason.RECALLED)", "pass"),
            (
                recalls,
                "RecallListener._answer",
                "self._give_back(back)",
                "self._give_back.__self__._leasing.relinquish(back)",
            ),
        ),
        "overlap",
        "recalls",
    ),
    Mutant(
        "a lease is granted to who waits as soon as its holder is told",
        one(
            decisions,
            "_breakable",
            "return wounds or bounds.now.surely_past(lease.expiry_ns)",
            "return wounds or bounds.now.surely_past(lease.granted_ns + 10**9)",
        ),
        "overlap",
        "recalls",
    ),
    Mutant(
        "a kept lease is handed out past its expiry",
        one(
            recalls,
            "use_again",
            "now.surely_before(lease.usable_until_ns(keeper.policy.holder_margin_ns))",
            "True",
        ),
        "handed",
        "recalls",
    ),
    Mutant(
        "only X excludes",
        one(
            decisions,
            "conflicts",
            "return other not in _BESIDE[one]",
            "return 'X' in (one, other)",
        ),
        "overlap",
        "shares",
    ),
    Mutant(
        "what the dead took tentatively is theirs until it runs out",
        one(connection, "TentativeLeaseReaper.gone", ">= GRACE_NS", ">= 10 * GRACE_NS"),
        "waits",
        "takers",
    ),
    Mutant(
        "what holders without a connection hold is ended with what they took tentatively",
        one(
            decisions,
            "_decide_break",
            "or (each.phase is Phase.TENTATIVE and (command.stopping or each.holder == command.gone))",
            "or each.holder == command.gone or (each.phase is Phase.TENTATIVE and command.stopping)",
        ),
        "endings",
        "leases",
    ),
)
