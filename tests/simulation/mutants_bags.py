"""Wrong versions of steps in writing, closing, sealing and reading bags. Each names the checker that kills it."""

from __future__ import annotations

from appliance.bag import closedbags, closing, horizon, reader, writing
from tests.simulation import mount
from tests.simulation.mutant import Mutant, one

BAGS: tuple[Mutant, ...] = (
    Mutant(
        "a bag is listed before its prelock",
        one(
            closing,
            "Closer.help",
            "if not self._begin(bag):\n    return None\nfound = self._contents(bag)",
            "found = self._contents(bag)\nif not self._begin(bag):\n    return None",
        ),
        "committed",
        "doubt",
    ),
    Mutant(
        "a writer looks before it publishes",
        one(
            writing,
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
        one(mount, "SimulatedMount.look", "if self.revalidates:", "if not self.revalidates:"),
        "committed",
    ),
    Mutant(
        "a clock excuses the look",
        one(
            writing,
            "LookingWriter._look",
            "name = self._file_name(file)",
            "name = self._file_name(file)\n"
            "if not self._time.now().surely_past(file.bag.end_ns):\n    return Committed()",
        ),
        "committed",
    ),
    Mutant(
        "a writer does not look at the rack",
        one(writing, "LookingWriter._look", "if rack is None or rack:", "if seen is None:"),
        "committed",
    ),
    Mutant(
        "a writer does not look at the bag",
        one(writing, "LookingWriter._look", "if PRELOCK in seen:", "if name not in seen:"),
        "committed",
    ),
    Mutant(
        "a lock is believed without a look at the rack",
        one(
            closing,
            "Authority.answer",
            "closed is None or self.rack_begun(bag.rack)",
            "closed is None",
        ),
        "finality",
        "crowd",
    ),
    Mutant(
        "a rack is looked at only once, before the lock is read",
        one(
            closing,
            "Authority.close",
            "closed = self.closer.close(bag)\n"
            "return closed if isinstance(closed, NotDue) else self.answer(bag, closed)",
            "begun = self.rack_begun(bag.rack)\nclosed = self.closer.close(bag)\nif isinstance(closed, NotDue):\n"
            "    return closed\nif begun or closed is None:\n    return self.by_seal(bag)\n"
            "return self._keep(bag, Contents(closed.lock))",
        ),
        "finality",
        "eclipse",
    ),
    Mutant(
        "a directory that is gone counts as not closed",
        one(
            writing,
            "LookingWriter._look",
            "if seen is None or name not in seen:",
            "if seen is None or name not in seen:\n    return Committed()\nif seen is None:",
        ),
        "committed",
        "crowd",
    ),
    Mutant(
        "late means not committed, without asking the lock",
        one(
            writing,
            "LookingWriter._look",
            "closed = self._authority.closer.help(file.bag)",
            "return NotCommitted('late')",
        ),
        "committed",
    ),
    Mutant(
        "a failed publication is reported as not committed",
        one(writing, "LookingWriter.write", "return self._after_doubt(file, doubt)", "return NotCommitted(str(doubt))"),
        "committed",
    ),
    Mutant(
        "one look after a doubtful publication",
        one(
            writing,
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
                writing,
                "LookingWriter.write",
                "return self._look(file)",
                "return self._look(file) if self._lost.value != 'lost' else NotCommitted('taken')",
            ),
            (
                writing,
                "MaildirWriter._publish",
                "if published is Published.ABSENT:",
                "self._lost = published\nif published is Published.ABSENT:",
            ),
        ),
        "committed",
    ),
    Mutant(
        "a closer believes its own list",
        one(
            closing,
            "Closer.help",
            "return self.read(bag, ours)",
            "closed = self.read(bag)\nif closed is None or found is None:\n    return closed\n"
            "import msgspec\nreturn Closed(msgspec.structs.replace(closed.lock, entries=found), closed.raw)",
        ),
        "finality",
        "crowd",
    ),
    Mutant(
        "a rack is listed before its prelock",
        one(
            closing,
            "Sealer._begin_and_list",
            "begun = self._storage.ensure_marker(f'{rack.path}/{PRELOCK}')\n"
            "names = self._storage.list_afresh(rack.path)",
            "names = self._storage.list_afresh(rack.path)\n"
            "begun = self._storage.ensure_marker(f'{rack.path}/{PRELOCK}')",
        ),
        "committed",
        "crowd",
    ),
    Mutant(
        "a seal leaves out bags that are not closed yet",
        one(
            closing,
            "Sealer._closed_bags",
            "closed = self._closer.help(bag)",
            "closed = self._closer.read(bag)\nif closed is None:\n    continue",
        ),
        "committed",
    ),
    Mutant(
        "a settler skips bags that nobody wrote to",
        one(
            horizon,
            "Horizon.step",
            "bags = self._next_bags()",
            "bags = self._next_bags()\nbag = bags[0]\n"
            "if self._storage.look(bag.path, ()) is None and self._time.now().surely_past(bag.due_ns):\n"
            "    self._reach(bag.end_ns)\n    return None",
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
        one(
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
        one(
            closedbags,
            "ListedFiles.pieces",
            "for number, (entry, read) in enumerate(zip(lock.entries, found, strict=True)):",
            "for name in self._storage.list_afresh(bag.path) or ():\n"
            "    yield (name, measure(self._storage.read(f'{bag.path}/{name}') or b'')[0])\n"
            "for number, (entry, read) in ():",
        ),
        "agreement",
    ),
    Mutant(
        "a rack is taken as sealed when its sealing has begun",
        one(
            closing,
            "Sealer._is_sealed",
            "bool(self._storage.look(rack.path, (SEAL,)))",
            "bool(self._storage.look(rack.path, (SEAL, PRELOCK)))",
        ),
        "past",
        "crowd",
    ),
)
