"""Wrong versions of steps in appending, packing and retention. Each names the checker that kills it."""

from __future__ import annotations

from appliance.bag import closedbags, packer, reader, writing
from tests.simulation.mutant import Mutant, one

PACKS: tuple[Mutant, ...] = (
    Mutant(
        "bag directories are deleted before the seal",
        one(
            packer,
            "Packer.pack",
            "return PackReport(PackState.UNSEALED)",
            "return self._sweep(PackState.EMPTY, self._bags_there(rack))",
        ),
        "committed",
        "packs",
    ),
    Mutant(
        "bag directories are deleted before the pack is there",
        one(packer, "Packer.pack", "made = False", "made = False\nself._sweep(PackState.PACKED, bags)"),
        "kept",
        "packs",
    ),
    Mutant(
        "a pack is not held against its seal before the directories go",
        one(packer, "Packer.pack", "if not self._verified(rack):", "if not self._has_pack(rack):"),
        "kept",
        "packs",
    ),
    Mutant(
        "retention deletes seals",
        one(
            packer,
            "Retention.delete",
            "self._storage.unlink(old.path)",
            "self._storage.unlink(old.path)\nself._storage.unlink(f'{old.rack.path}/{SEAL}')",
        ),
        "kept",
        "packs",
    ),
    Mutant(
        "retention believes one clock",
        one(
            packer,
            "Retention.cutoff",
            "return min(own, self._storage.server_clock(self._tmp)) - self._keep_ns",
            "return own - self._keep_ns",
        ),
        "kept",
        "packs",
    ),
    Mutant(
        "a file whose directory was swept is not looked for in the pack",
        one(closedbags, "ListedFiles._pack_for", "pack = self._pack(bag.rack)", "pack = None"),
        "damage",
        "packs",
    ),
    Mutant(
        "a writer appends behind what its append in doubt left",
        one(
            writing,
            "LogFileWriter._publish",
            "if problem.code != SIZE_NOT_EXPECTED:\n    raise",
            "if problem.code != SIZE_NOT_EXPECTED:\n"
            "    self._give_back(file, own, self._storage.size_of(f'{file.bag.path}/{place.name}') or 0)\n    raise",
        ),
        "committed",
        "doubt",
    ),
    Mutant(
        "an append in doubt counts because its file is there",
        one(
            writing,
            "LogFileWriter._is_there",
            "return any((place.sure for place in self._tried_of(file).places))",
            "return True",
        ),
        "committed",
        "doubt",
    ),
    Mutant(
        "an append counts because its file is listed, whatever is in it",
        (
            (
                writing,
                "LogFileWriter._listed",
                "name in made and entry.size <= end - len(file.data)",
                "name not in ends",
            ),
            (
                writing,
                "LogFileWriter._listed",
                "if any((there[n:n + len(wanted)] == wanted for n in range(len(there)))):",
                "if True:",
            ),
        ),
        "committed",
        "doubt",
    ),
    Mutant(
        "equal frames in two files of a bag count twice",
        one(
            reader,
            "Reader._accepted",
            "setdefault(part.origin.frame.digest, part)",
            "setdefault(len(found.get(part.origin.rank[:3], ())), part)",
        ),
        "agreement",
        "doubt",
    ),
)
