"""Wrong versions of steps in an object store. Each names the checker that kills it."""

from __future__ import annotations

from appliance.bag import objects, roots, writing
from tests.simulation.mutant import Mutant, one

OBJECTS: tuple[Mutant, ...] = (
    Mutant(
        "a put that was refused is taken for a name that is taken",
        one(objects, "ObjectStorage._is_ours", "if there is not None:", "if there is not None or not data:"),
        "committed",
        "objects",
    ),
    Mutant(
        "a put that was done and refused is taken for another's",
        (
            (objects, "ObjectStorage._is_ours", "return there == data", "return there == data and not data"),
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
        "objects",
    ),
    Mutant(
        "a put that failed is taken for one that was refused",
        one(
            objects,
            "ObjectStorage._is_ours",
            "if self._bucket.put(path, data):\n    return True",
            "try:\n    if self._bucket.put(path, data):\n        return True\n"
            "except Environment:\n    return data == b''",
        ),
        "committed",
        "objects",
        first=1_700,
    ),
    Mutant(
        "an object that is there is replaced",
        one(
            objects,
            "ObjectStorage._is_ours",
            "if there is not None:",
            "if there is not None and there != data:\n    self._bucket.delete(path)\n    continue\n"
            "if there is not None:",
        ),
        "finality",
        "objects",
    ),
    Mutant(
        "the root does for a store that cannot be asked",
        one(
            roots,
            "PlacedStorage._store",
            "except TenureError as problem:",
            "except TenureError as problem:\n    return self._root",
        ),
        "committed",
        "elsewhere",
    ),
    Mutant(
        "a store that does not hold the log is used",
        one(roots, "PlacedStorage._store", "if there != birth:", "if there and there != birth:"),
        "committed",
        "elsewhere",
    ),
)
