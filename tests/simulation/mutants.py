"""Wrong versions of production steps. Each has to be killed by the checker that is named beside it.

A mutant replaces one piece of the text of one production function (planting.py), so that it cannot outlive
the line that it breaks, or one rule of the simulated surroundings. A mutant that survives is a failing test.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import pytest

from appliance.bag import authority, closer, horizon, listedfiles, looks, maildir, reader, sealer
from appliance.lease import ceiling, shard, state
from appliance.lease import store as store_module
from appliance.session import held, leasing, session, stamping
from tests.simulation import mount
from tests.simulation.actors import packer
from tests.simulation.planting import Planter
from timeagent import sampled

type Break = tuple[ModuleType, str, str, str]
"""Module, function, what stands there, what is put in its place."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    """What is wrong."""
    breaks: tuple[Break, ...]
    killed_by: str
    scenario: str = "bags"

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        planter = Planter(patch)
        for module, function, old, new in self.breaks:
            planter.plant(module, function, old, new)


def _one(module: ModuleType, function: str, old: str, new: str) -> tuple[Break, ...]:
    return ((module, function, old, new),)


BAGS: tuple[Mutant, ...] = (
    Mutant(
        "a bag is listed before its prelock",
        _one(
            closer,
            "Closer.help",
            "if not self._begin(bag):\n    return Gone()\nfound = self._contents(bag)",
            "found = self._contents(bag)\nif not self._begin(bag):\n    return Gone()",
        ),
        "committed",
    ),
    Mutant(
        "a writer looks before it publishes",
        _one(
            looks,
            "LookingWriter.write",
            "try:\n    self._publish(file)",
            """try:
    seen = self._storage.look(file.bag.path, (PRELOCK,)) or self._authority.rack_begun(file.bag.rack)
    self._publish(file)
    if not seen:
        return Committed()""",
        ),
        "committed",
    ),
    Mutant(
        "nobody revalidates",
        _one(mount, "SimulatedMount.look", "if self.revalidates:", "if not self.revalidates:"),
        "committed",
    ),
    Mutant(
        "a clock excuses the look",
        _one(
            looks,
            "LookingWriter._look",
            "name = self._file_name(file)",
            "name = self._file_name(file)\n"
            "if not self._time.now().surely_past(file.bag.end_ns):\n    return Committed()",
        ),
        "committed",
    ),
    Mutant(
        "a writer does not look at the rack",
        _one(looks, "LookingWriter._look", "if self._authority.rack_begun(file.bag.rack):", "if seen is None:"),
        "committed",
    ),
    Mutant(
        "a writer does not look at the bag",
        _one(looks, "LookingWriter._look", "if PRELOCK in seen:", "if name not in seen:"),
        "committed",
    ),
    Mutant(
        "a lock is believed without a look at the rack",
        _one(
            authority,
            "Authority.answer",
            "isinstance(closed, Gone) or self.rack_begun(bag.rack)",
            "isinstance(closed, Gone)",
        ),
        "finality",
        "crowd",
    ),
    Mutant(
        "a rack is looked at only once, before the lock is read",
        _one(
            authority,
            "Authority.close",
            "closed = self.closer.close(bag)\n"
            "return closed if isinstance(closed, NotDue) else self.answer(bag, closed)",
            "begun = self.rack_begun(bag.rack)\nclosed = self.closer.close(bag)\nif isinstance(closed, NotDue):\n"
            "    return closed\nif begun or isinstance(closed, Gone):\n    return self.by_seal(bag)\n"
            "return self._keep(bag, Contents(closed.lock))",
        ),
        "finality",
        "eclipse",
    ),
    Mutant(
        "a directory that is gone counts as not closed",
        _one(
            looks,
            "LookingWriter._look",
            "if seen is None or name not in seen:",
            "if seen is None or name not in seen:\n    return Committed()\nif seen is None:",
        ),
        "committed",
        "crowd",
    ),
    Mutant(
        "late means not committed, without asking the lock",
        _one(
            looks,
            "LookingWriter._look",
            "closed = self._authority.closer.help(file.bag)",
            "return NotCommitted('late')",
        ),
        "committed",
    ),
    Mutant(
        "a failed publication is reported as not committed",
        _one(looks, "LookingWriter.write", "return self._after_doubt(file, doubt)", "return NotCommitted(str(doubt))"),
        "committed",
    ),
    Mutant(
        "one look after a doubtful publication",
        _one(
            looks,
            "LookingWriter._after_doubt",
            "return self._look(file) if self._is_there(file) else Unknown(str(doubt))",
            "name = self._file_name(file)\n"
            "seen = self._storage.look(file.bag.path, (PRELOCK, name))\n"
            "if seen and PRELOCK not in seen and name in seen:\n"
            "    return Committed() if not self._authority.rack_begun(file.bag.rack) else Unknown(str(doubt))\n"
            "return Unknown(str(doubt))",
        ),
        "committed",
        "doubt",
    ),
    Mutant(
        "EEXIST of the own link is taken as another's",
        (
            (mount, "SimulatedMount.publish", "if self.counts_links and file.links > 1:", "if file.links > 99:"),
            (
                looks,
                "LookingWriter.write",
                "return self._look(file)",
                "return self._look(file) if self._lost.value != 'lost' else NotCommitted('taken')",
            ),
            (
                maildir,
                "MaildirWriter._publish",
                "if published is Published.ABSENT:",
                "self._lost = published\nif published is Published.ABSENT:",
            ),
        ),
        "committed",
    ),
    Mutant(
        "a closer believes its own list",
        _one(
            closer,
            "Closer.help",
            "return self.read(bag) or Gone()",
            "closed = self.read(bag)\nif closed is None or found is None:\n    return closed or Gone()\n"
            "import msgspec\nreturn Closed(msgspec.structs.replace(closed.lock, entries=found), closed.raw)",
        ),
        "finality",
        "crowd",
    ),
    Mutant(
        "a rack is listed before its prelock",
        _one(
            sealer,
            "Sealer._begin_and_list",
            "self._storage.ensure_marker(f'{rack.path}/{PRELOCK}')\nnames = self._storage.list_afresh(rack.path) or []",
            "names = self._storage.list_afresh(rack.path) or []\nself._storage.ensure_marker(f'{rack.path}/{PRELOCK}')",
        ),
        "committed",
        "crowd",
    ),
    Mutant(
        "a seal leaves out bags that are not closed yet",
        _one(
            sealer,
            "Sealer._closed_bags",
            "closed = self._closer.help(bag)",
            "closed = self._closer.read(bag)\nif closed is None:\n    continue",
        ),
        "committed",
    ),
    Mutant(
        "bag directories are deleted before the seal",
        _one(
            packer,
            "Packer._pack",
            "if self.waits_for_the_seal and log.authority.sealer.sealed(rack) is None:",
            "if not rack.path:",
        ),
        "committed",
        "crowd",
    ),
    Mutant(
        "a settler skips bags that nobody wrote to",
        _one(
            horizon,
            "Horizon.step",
            "bags = self._next_bags()",
            "bags = self._next_bags()\n"
            "if self._storage.look(bags[0].path, ()) is None and self._time.now().surely_past(bags[0].due_ns):\n"
            "    self._reach(bags[0].end_ns)\n    return None",
        ),
        "past",
    ),
    Mutant(
        "the latest are read without a look afterwards",
        (
            (
                reader,
                "Reader._open_bag",
                "begun = files is None or bool(self._storage.look(bag.path, (PRELOCK,)))",
                "begun = files is None",
            ),
            (
                reader,
                "Reader._files_there",
                "if names is None or PRELOCK in names or LOCK in names:",
                "if names is None:",
            ),
        ),
        "finality",
        "crowd",
    ),
    Mutant(
        "the latest are read without a look at the rack",
        _one(
            reader,
            "Reader._open_bag",
            "if files is not None and (not begun) and (not self._authority.rack_begun(bag.rack)):",
            "if files is not None and (not begun):",
        ),
        "finality",
        "eclipse",
    ),
    Mutant(
        "a closed bag is read by its directory, not by its lock",
        _one(
            listedfiles,
            "ListedFiles.pieces",
            "for number, entry in enumerate(lock.entries):",
            "for name in self._storage.list_afresh(bag.path) or ():\n"
            "    yield (name, pieces_with_digest(self._storage.read(f'{bag.path}/{name}') or b'')[0])\n"
            "for number, entry in ():",
        ),
        "agreement",
    ),
    Mutant(
        "a rack is taken as sealed when its sealing has begun",
        _one(
            sealer,
            "Sealer._is_sealed",
            "bool(self._storage.look(rack.path, (SEAL,)))",
            "bool(self._storage.look(rack.path, (SEAL, PRELOCK)))",
        ),
        "past",
        "crowd",
    ),
)

LEASES: tuple[Mutant, ...] = (
    Mutant(
        "a log is not settled before its first use",
        _one(session, "Session._settle_for", "if book.horizon.reached < target:", "if book.horizon.reached < 0:"),
        "complete",
        "sleepers",
    ),
    Mutant(
        "another log than the one in use is settled",
        _one(
            session,
            "Session._settle_for",
            "book.horizon.settle(target, progress=lambda _: self._renew_meanwhile())",
            "self._logs.opened('beta').horizon.settle(target, progress=lambda _: self._renew_meanwhile())",
        ),
        "complete",
        "sleepers",
    ),
    Mutant(
        "a latest reading leaves out the bags that are open",
        _one(reader, "Reader._open_bag", "for _ in range(_TRIES):", "for _ in range(_TRIES):\n    return"),
        "money",
        "leases",
    ),
    Mutant(
        "the floor is not cumulative",
        _one(state, "_end", "max(before.floor_ns, floor)", "floor"),
        "witnesses",
        "leases",
    ),
    Mutant(
        "settle_to is forgotten by the next ending",
        _one(state, "_end", "max(before.settle_to_ns, settle_to)", "settle_to"),
        "witnesses",
        "leases",
    ),
    Mutant(
        "a broken lease moves no floor",
        _one(
            state,
            "_broken",
            "_end(domain, left, lease, ending, lease.expiry_ns, lease.expiry_ns)",
            "_end(domain, left, lease, ending, 0, lease.expiry_ns)",
        ),
        "endings",
        "stalls",
    ),
    Mutant(
        "a broken lease moves no settle_to",
        _one(
            state,
            "_broken",
            "_end(domain, left, lease, ending, lease.expiry_ns, lease.expiry_ns)",
            "_end(domain, left, lease, ending, lease.expiry_ns, 0)",
        ),
        "endings",
        "stalls",
    ),
    Mutant(
        "an expiry is compared with the wrong end of the interval",
        _one(state, "_breakable", "bounds.now.surely_past(lease.expiry_ns)", "lease.expiry_ns <= bounds.now.latest"),
        "endings",
        "handover",
    ),
    Mutant(
        "a held lease is taken from its holder by an older request",
        _one(
            state,
            "_breakable",
            "wounds = lease.phase is Phase.TENTATIVE and age < lease.age",
            "wounds = age < lease.age",
        ),
        "overlap",
        "leases",
    ),
    Mutant(
        "a lease is given back without its watermark",
        _one(
            leasing,
            "Leasing.relinquish",
            "givings = [Giving(lease.domain, lease.correlation_id, lease.watermark_ns, lease.watermark_time, "
            "lease.messages, lease.chain_head) for lease in group]",
            "givings = [Giving(lease.domain, lease.correlation_id) for lease in group]",
        ),
        "exclusion",
        "stalls",
    ),
    Mutant(
        "a lease is given back while an outcome is unknown",
        (
            (
                session,
                "Session.relinquish",
                "self._leasing.relinquish([lease for lease in mine if lease not in doubtful])",
                "self._leasing.relinquish(mine)",
            ),
            (session, "Session.relinquish", "self._resolve_before_end(mine)", "pass"),
        ),
        "complete",
        "stalls",
    ),
    Mutant(
        "timestamps do not mind the floor",
        _one(
            stamping,
            "Stamper._first_timestamp",
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
                "Lease.check_held",
                "if self.ended is None and (not now.surely_before(self.usable_until_ns(margin_ns))):",
                "if self.ended is None and now.surely_past(self.expiry_ns + 10**10):",
            ),
            (stamping, "Stamper._first_timestamp", "if start + count > lease.expiry_ns:", "if start < 0:"),
        ),
        "published",
        "stalls",
    ),
    Mutant(
        "an id is tried again in a later bag before its first attempt is decided",
        _one(
            session,
            "Session.publish",
            "if earlier is not None:",
            "self._pending.pop(identity, None)\nif identity == 0:",
        ),
        "published",
        "stalls",
    ),
    Mutant(
        "a lease is granted beyond the ceiling",
        _one(state, "_expiry", "bounds.ceiling_ns", "2**62"),
        "witnesses",
        "leases",
    ),
    Mutant(
        "grants reach to a ceiling record that is not linked yet",
        _one(
            ceiling,
            "CeilingChain._link",
            "record, data = self._pending",
            "record, data = self._pending\nself._number, self._ceiling_ns = (record.number, record.ceiling_ns)",
        ),
        "witnesses",
        "leases",
    ),
    Mutant(
        "EEXIST on a ceiling record is ignored",
        _one(
            ceiling,
            "CeilingChain._link",
            "taken = not self._port.link(record.number, data) and self._port.read(record.number) != data",
            "self._port.link(record.number, data)\ntaken = False",
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "a ceiling falls",
        _one(
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
            (ceiling, "CeilingChain._look", "if numbers and numbers[-1] > number:", "if not numbers:"),
            (ceiling, "CeilingChain._link", "number <= record.number - RECORDS_KEPT", "number <= record.number - 1"),
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "a successor begins at the floor of the run before, not at its ceiling",
        _one(
            ceiling,
            "CeilingChain._before",
            "return _Before(number, record.ceiling_ns, record.ceiling_ns, record.ceiling_ns)",
            "return _Before(number, record.ceiling_ns, record.floor_ns, record.settle_to_ns)",
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "an orderly record is written while leases are out",
        _one(shard, "Shard.stop_orderly", "if until is not None:", "if until == 0:"),
        "endings",
        "contenders",
    ),
    Mutant(
        "an orderly record does not say the fences",
        _one(
            shard,
            "Shard.stop_orderly",
            "floor, settle_to = (max(floor, fence, self._floor_ns), max(settle_to, self._settle_to_ns))",
            "floor, settle_to = (max(floor, self._floor_ns), max(settle_to, self._settle_to_ns))",
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "an orderly record does not say the floors",
        _one(
            shard,
            "Shard.stop_orderly",
            "floor, settle_to = (max(floor, fence, self._floor_ns), max(settle_to, self._settle_to_ns))",
            "floor, settle_to = (self._floor_ns, self._settle_to_ns)",
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "who was deposed keeps its state and grants on",
        _one(
            ceiling,
            "CeilingChain._depose",
            "return self._deposed",
            "gone, self._deposed = (self._deposed, None)\nreturn gone",
        ),
        "witnesses",
        "contenders",
    ),
    Mutant(
        "a fence is the clock's",
        _one(
            state,
            "_fence",
            "max(memory.fence, bounds.shard_floor_ns, bounds.now.midpoint) + 1",
            "bounds.now.midpoint",
        ),
        "witnesses",
        "leases",
    ),
    Mutant(
        "a lease that is over blocks its domain for longer",
        _one(
            state,
            "_breakable",
            "return wounds or bounds.now.surely_past(lease.expiry_ns)",
            "return wounds or bounds.now.surely_past(lease.expiry_ns + 6 * 10**9)",
        ),
        "waits",
        "deaths",
    ),
    Mutant(
        "a shard begins with what the one before remembered",
        _one(
            store_module,
            "LeaseStore.__init__",
            "self.leases = 0",
            "self.leases = 1",
        ),
        "empty",
        "leases",
    ),
)

CLOCKS: tuple[Mutant, ...] = (
    Mutant(
        "a sample of the clock counts from the reading after it",
        _one(sampled, "SampledClock._judge", "self._sampled = self._asked", "self._sampled = reading"),
        "truthful",
        "machines",
    ),
    Mutant(
        "a sample of the clock does not age",
        _one(
            sampled,
            "SampledClock._interval",
            "aged = sample.offset.widened(_drift(reading.after - sample.boot_ns)).shifted(reading.real)",
            "aged = sample.offset.shifted(reading.real)",
        ),
        "truthful",
        "machines",
    ),
    Mutant(
        "what a clock was moved by since its sample is not allowed for",
        _one(
            sampled,
            "SampledClock._interval",
            "low, high = reading.moved_since(self._sampled) if self._sampled is not None else (0, 0)",
            "low, high = (0, 0)",
        ),
        "truthful",
        "machines",
    ),
)

MUTANTS: tuple[Mutant, ...] = BAGS + LEASES + CLOCKS
