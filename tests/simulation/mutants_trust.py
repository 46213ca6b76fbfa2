"""Wrong versions of the steps by which keys come and go. Each names the checker that kills it."""

from __future__ import annotations

from appliance.bag import closing, reader
from appliance.session import stamping
from tests.simulation.mutant import Mutant, one

TRUST: tuple[Mutant, ...] = (
    Mutant(
        "a closer names the first trust record for ever",
        one(
            closing,
            "Closer._promise",
            "self._time.now(), self._records.newest()",
            "self._time.now(), type(self._records.newest())(1, self._records.newest().policy)",
        ),
        "published",
        "rotations",
    ),
    Mutant(
        "the keys of one trust record judge for all that come after it",
        one(
            reader,
            "Reader._judge",
            "records.keyring(numbers.trust)",
            "next((each._keyring for each in self._judges.values()), records.keyring(numbers.trust))",
        ),
        "agreement",
        "rotations",
    ),
    Mutant(
        "nobody asks whether the keys are good by which it writes",
        one(stamping, "FrameStamper._judged", "_refuse_untrusted(records.keyring, token, proofs)", "pass"),
        "published",
        "rotations",
    ),
    Mutant(
        "open bags are judged by the first trust record",
        one(
            reader,
            "Reader._open_bag",
            "self._accepted(bag, found, self._records.newest())",
            "self._accepted(bag, found, RecordNumbers(1, self._records.newest().policy))",
        ),
        "complete",
        "rotations",
    ),
)
