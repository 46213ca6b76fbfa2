"""Wrong versions of production steps. Each has to be killed by the checker that is named beside it.

A mutant replaces one piece of the text of one production function (planting.py), so that it cannot outlive
the line that it breaks, or one rule of the simulated surroundings. A mutant that survives is a failing test.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import pytest

from appliance.bag import authority, closer, horizon, maildir, reader, sealer
from tests.simulation import mount
from tests.simulation.actors import packer
from tests.simulation.planting import Planter

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
            maildir,
            "MaildirWriter.write",
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
            maildir,
            "MaildirWriter._look",
            "name = file.name.text()",
            "name = file.name.text()\nif not self._time.now().surely_past(file.bag.end_ns):\n    return Committed()",
        ),
        "committed",
    ),
    Mutant(
        "a writer does not look at the rack",
        _one(maildir, "MaildirWriter._look", "if self._authority.rack_begun(file.bag.rack):", "if seen is None:"),
        "committed",
    ),
    Mutant(
        "a writer does not look at the bag",
        _one(maildir, "MaildirWriter._look", "if PRELOCK in seen:", "if name not in seen:"),
        "committed",
    ),
    Mutant(
        "the rack is looked at once, before the lock is read",
        (
            (
                authority,
                "Authority.close",
                "closed = self.closer.close(bag)",
                (
                    "begun = self.rack_begun(bag.rack)\nclosed = self.closer.close(bag)\n"
                    "if isinstance(closed, NotDue):\n    return closed\n"
                    "if not begun and not isinstance(closed, Gone):\n    return self._keep(bag, Contents(closed.lock))"
                ),
            ),
        ),
        "finality",
        "crowd",
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
        "a directory that is gone counts as not closed",
        _one(
            maildir,
            "MaildirWriter._look",
            "if seen is None or name not in seen:",
            "if seen is None or name not in seen:\n    return Committed()\nif seen is None:",
        ),
        "committed",
        "crowd",
    ),
    Mutant(
        "late means not committed, without asking the lock",
        _one(
            maildir,
            "MaildirWriter._look",
            "closed = self._authority.closer.help(file.bag)",
            "return NotCommitted('late')",
        ),
        "committed",
    ),
    Mutant(
        "a failed publication is reported as not committed",
        _one(
            maildir, "MaildirWriter.write", "return self._after_doubt(file, doubt)", "return NotCommitted(str(doubt))"
        ),
        "committed",
    ),
    Mutant(
        "one look after a doubtful publication",
        _one(
            maildir,
            "MaildirWriter._after_doubt",
            "return self._look(file) if self._is_there(file) else Unknown(str(doubt))",
            "name = file.name.text()\nseen = self._storage.look(file.bag.path, (PRELOCK, name))\n"
            "if seen and name in seen and PRELOCK not in seen:\n"
            "    begun = self._authority.rack_begun(file.bag.rack)\n"
            "    return Unknown('rack') if begun else Committed()\n"
            "return Unknown(str(doubt))",
        ),
        "committed",
        "crowd",
    ),
    Mutant(
        "EEXIST of the own link is taken as another's",
        (
            (mount, "SimulatedMount.publish", "if self.counts_links and file.links > 1:", "if file.links > 99:"),
            (
                maildir,
                "MaildirWriter.write",
                "return self._look(file)",
                "return self._look(file) if self._lost is not Published.LOST else NotCommitted('taken')",
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
            "Sealer._seal_one",
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
            "closed = self.authority.close(bag)",
            "if self._storage.look(bag.path, ()) is None and self._time.now().surely_past(bag.due_ns):\n"
            "    self._reach(bag.end_ns)\n    return None\nclosed = self.authority.close(bag)",
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
        "crowd",
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

MUTANTS: tuple[Mutant, ...] = BAGS
