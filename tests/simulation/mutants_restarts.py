"""Wrong versions of how a shard is left for a restart and gone on with. Each names the checker that kills it."""

from __future__ import annotations

from appliance.lease import ceiling, shard, store, whole_shard, witness_ledger
from appliance.node import hosted_shard
from tests.simulation.mutant import Mutant, one

RESTARTS: tuple[Mutant, ...] = (
    Mutant(
        "what was left is found as often as it is looked for",
        one(store, "LeaseStore._take", "self._connection.execute('UPDATE stopped SET taken = 1')", "pass"),
        "resumed",
        "restarts",
    ),
    Mutant(
        "nobody looks whether the newest record is the one with which a run stopped",
        one(
            ceiling,
            "CeilingChain._goes_on",
            "if newest is None or newest not in (record, pending):",
            "if newest is None:",
        ),
        "witnesses",
        "restarts",
    ),
    Mutant(
        "what another boot left is gone on with",
        one(whole_shard, "Suspension.difference", "self.boot, boot", "boot, boot"),
        "resumed",
        "restarts",
    ),
    Mutant(
        "who goes on grants under the record of the run before",
        one(
            ceiling,
            "CeilingChain._first",
            "return self._link(CeilingKind.RUNNING, self.floor_ns, self.settle_to_ns, patient=None)",
            "if self._must_win:\n    newest = self._newest\n"
            "    self.number, self.ceiling_ns = (newest.record.number, newest.record.ceiling_ns)\n"
            "    return newest\n"
            "return self._link(CeilingKind.RUNNING, self.floor_ns, self.settle_to_ns, patient=None)",
        ),
        "resumed",
        "restarts",
    ),
    Mutant(
        "a clock behind what was signed is good enough",
        (
            *one(whole_shard, "Suspension.clock_difference", "behind > 0", "behind > 10 ** 15"),
            *one(witness_ledger, "BatchSigner.resume", "self.not_before_ns = said.signed_ns", "pass"),
        ),
        "resumed",
        "restarts",
    ),
    Mutant(
        "leases of the file are dropped",
        one(
            store,
            "LeaseStore._take",
            "self._connection.execute(_BESIDE)",
            "self._connection.execute(_BESIDE)\nself._connection.execute('DELETE FROM entry WHERE kind > 0')",
        ),
        "resumed",
        "restarts",
    ),
    Mutant(
        "what is not in the file yet is not left",
        one(store, "LeaseStore.leave", "self._write(len(self._unwritten))", "True"),
        "resumed",
        "restarts",
    ),
    Mutant(
        "session leases that are not in the file yet are not left",
        one(store, "LeaseStore.leave", "self._write_sessions(len(self._sessions_unwritten))", "True"),
        "resumed",
        "restarts",
    ),
    Mutant(
        "the chain of batches begins anew",
        one(
            witness_ledger,
            "BatchSigner.resume",
            "self.head, self.batches, self.blocks_lost = (said.head, said.batches, said.blocks_lost)",
            "pass",
        ),
        "witnesses",
        "restarts",
    ),
    Mutant(
        "who is told to stop for a restart forgets its leases",
        one(
            hosted_shard,
            "HostedShard._stopped_at_once",
            "self.store.leases and (not self.shard.is_of_no_map)",
            "False",
        ),
        "resumed",
        "restarts",
    ),
    Mutant(
        "it is left before its ledger is written",
        one(
            hosted_shard,
            "HostedShard._leave",
            "number, size = self.ledger.end",
            "number, size = (self.ledger.end[0], max(0, self.ledger.end[1] - 1))",
        ),
        "resumed",
        "restarts",
    ),
    Mutant(
        "a restart neither waits for a record that is on its way nor says which",
        (
            *one(shard, "Shard.suspend", "settled = self._chain.settle()", "settled = None"),
            *one(ceiling, "CeilingChain.standing", "b'' if self._pending is None else self._pending.data", "b''"),
        ),
        "resumed",
        "restarts",
    ),
)
