"""Wrong versions of locks, semaphores and elections."""

from __future__ import annotations

from appliance.recipes import election, exclusion, mount_election
from tests.simulation.mutant import Mutant, one

_FOLLOWS = "MountElection._may_follow"

RECIPES: tuple[Mutant, ...] = (
    Mutant(
        "a semaphore of another size is not looked for",
        one(exclusion, "Semaphore._next", "domain not in self._slots", "False"),
        "slots",
        "locks",
    ),
    Mutant(
        "a slot counts although the turn within which it was chosen is over",
        one(
            exclusion,
            "Semaphore._chosen",
            "try:\n    turn.check()\nexcept BaseException:\n    session.relinquish([lease])\n    raise",
            "pass",
        ),
        "slots",
        "locks",
    ),
    Mutant(
        "whoever wants a slot takes it without a turn",
        one(
            exclusion,
            "Semaphore._taken",
            "session.acquire(self._turn, timeout_s",
            "session.acquire(self._turn, mode='S', timeout_s",
        ),
        "slots",
        "locks",
    ),
    Mutant(
        "an epoch is taken when the last one may be past",
        one(
            mount_election,
            _FOLLOWS,
            "now.surely_past(newest.until_ns)",
            "now.latest > newest.until_ns",
        ),
        "leaders",
        "elections",
    ),
    Mutant(
        "an epoch is taken although nobody resigned",
        one(
            mount_election,
            _FOLLOWS,
            "newest.kind is EpochKind.RESIGNED and newest.successor",
            "newest.successor",
        ),
        "leaders",
        "elections",
    ),
    Mutant(
        "a leader goes on while it may be over",
        (
            (
                mount_election,
                "MountLeadership.check",
                "if not now.surely_before(self._newest.until_ns):",
                "if now.surely_past(self._newest.until_ns):",
            ),
            (
                mount_election,
                "MountLeadership.check",
                "not now.surely_before(self._newest.until_ns - margin_ns)",
                "now.surely_past(self._newest.until_ns)",
            ),
        ),
        "leaders",
        "elections",
    ),
    Mutant(
        "a leader that resigns leads until that is written",
        one(mount_election, "MountLeadership.resign", "self._over = 'resigned'", "pass"),
        "leaders",
        "elections",
    ),
    Mutant(
        "a leader leads on by a record in doubt",
        one(
            mount_election,
            "MountLeadership._link",
            "elif not isinstance(seen, InDoubt):",
            "else:\n    seen = seen if isinstance(seen, list) else []",
        ),
        "leaders",
        "elections",
    ),
    Mutant(
        "EEXIST on an epoch is ignored",
        one(
            mount_election,
            "MountElection.campaign",
            "self.link(*pending)",
            "[self.chain.link(pending[0].number, pending[1])] and self.chain.list_afresh()",
        ),
        "leaders",
        "elections",
    ),
    Mutant(
        "the lead is shared",
        one(
            election,
            "Election._taken",
            "session.acquire(self._lead, timeout_s",
            "session.acquire(self._lead, mode=Mode.S, timeout_s",
        ),
        "leaders",
        "elections",
    ),
)
