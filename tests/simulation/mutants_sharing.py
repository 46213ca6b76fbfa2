"""Wrong versions of steps in the node's writer and in hints. Each names the checker that kills it."""

from __future__ import annotations

from appliance.formats import hints
from appliance.lease import decisions, whole_shard
from appliance.node import writer_client, writer_server
from appliance.recipes import cached_value
from appliance.session import held, open_logs
from tests.simulation.mutant import Mutant, one

SHARING: tuple[Mutant, ...] = (
    Mutant(
        "a node's writer says committed, whatever the looks say",
        one(
            writer_server,
            "Batcher._flush",
            "outcome = self._write(bag, data)",
            "from appliance.bag.writing import Committed\noutcome = Committed()\nself._write(bag, data)",
        ),
        "committed",
        "batching",
    ),
    Mutant(
        "who hands in while a file is written is told the outcome of that file",
        one(
            writer_server,
            "Batcher._flush",
            "for _, told in taken:",
            "for _, told in taken + list(self._waiting.get(bag, ())):",
        ),
        "committed",
        "batching",
    ),
    Mutant(
        "a node's writer in doubt says not committed",
        one(
            writer_server,
            "NodeWriter._write",
            "_log.warning('flush-in-doubt bag=%s reason=%s', bag.path, outcome)\nreturn outcome",
            "from appliance.bag.writing import NotCommitted\nreturn NotCommitted('in doubt')",
        ),
        "committed",
        "batching",
    ),
    Mutant(
        "two batches of a node's writer have one name",
        one(writer_server, "NodeWriter._write", "self._sequence += 1", "self._sequence = 1"),
        "committed",
        "batching",
    ),
    Mutant(
        "a process in doubt about its node's writer believes its own file alone",
        one(
            writer_client,
            "SharedWriter._decided",
            "if incarnation is not None and isinstance(own, NotCommitted):",
            "if incarnation is None and isinstance(own, NotCommitted):",
        ),
        "committed",
        "batching",
    ),
    Mutant(
        "no answer of a node's writer counts as not taken",
        one(
            writer_client,
            "SharedWriter.write",
            "self._doubts[_key(file)] = incarnation\nreturn Unknown(reason)",
            "return self._own.write(file)",
        ),
        "committed",
        "batching",
    ),
    Mutant(
        "hints of a holder that died count as all that it wrote",
        one(
            decisions,
            "broken",
            "(lease.expiry_ns, lease.expiry_ns), None, bounds",
            "(lease.expiry_ns, lease.expiry_ns), lease.hints, bounds",
        ),
        "narrow",
        "hinted",
    ),
    Mutant(
        "hints are believed below their reach",
        one(open_logs, "_reach_ns", "return max(lease.hints.reach_ns(log), lease.own.reach_ns(log))", "return 0"),
        "narrow",
        "hinted",
    ),
    Mutant(
        "hints that were dropped for want of room are not missed",
        one(
            hints,
            "Hints.reach_ns",
            "return max((each.above_ns for each in self.bounds if each.log == log), default=self.complete_from_ns)",
            "return self.complete_from_ns",
        ),
        "narrow",
        "hinted",
    ),
    Mutant(
        "a shard that begins claims to know where everything is",
        one(whole_shard, "Eviction.memory", "nothing_known(self.floor_ns)", "nothing_known(0)"),
        "narrow",
        "hinted",
    ),
    Mutant(
        "a narrow reading leaves out the own attempts in doubt",
        one(open_logs, "_files", "dict.fromkeys(doubtful)", "{}"),
        "narrow",
        "hinted",
    ),
    Mutant(
        "a narrow reading leaves out what was written under the same lease",
        one(open_logs, "_files", "for place in (*places, *lease.own.places):", "for place in places:"),
        "complete",
        "hinted",
    ),
    Mutant(
        "a narrow reading gives messages of other domains",
        one(open_logs, "_naming", "not domains.isdisjoint(part.origin.domains)", "True"),
        "narrow",
        "hinted",
    ),
    Mutant(
        "a value in memory outlives its lease",
        one(held, "Lease.surely_held", "keeper.time.now().surely_before(end)", "True"),
        "fresh",
        "caches",
    ),
    Mutant(
        "a value in memory stays when its lease has gone back",
        (
            (held, "Lease.surely_held", "self.ended is None", "True"),
            (
                cached_value,
                "CachedValue._recalled",
                "self._kept = (True, kept.value, None)",
                "_ = (True, kept.value, None)",
            ),
        ),
        "fresh",
        "caches",
    ),
    Mutant(
        "what was left in memory is not written when another asks",
        one(cached_value, "CachedValue._recalled", "kept.dirty", "False"),
        "fresh",
        "caches",
    ),
    Mutant(
        "a value is not read again under a new lease",
        one(
            cached_value,
            "CachedValue._acquired",
            "messages[-1].payload if messages else None",
            "self._before or (messages[-1].payload if messages else None)",
        ),
        "fresh",
        "caches",
    ),
)
