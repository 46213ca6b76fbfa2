"""The casts of leases, and the mutants that are explored in them."""

from __future__ import annotations

from types import ModuleType

from appliance.formats.lease import Mode
from appliance.lease import decisions, sessions
from tests.simulation.exhaustive import lease_promises as leases
from tests.simulation.exhaustive.lease_casts import DUE, OVER, LeaseCast, holder, operator
from tests.simulation.exhaustive.lease_room import START

_S, _IX, _SIX, _X = Mode.S, Mode.IX, Mode.SIX, Mode.X

_LEFT = LeaseCast((holder("a", ends="leave", d=_X), holder("b", d=_X)))
_DROPPED = LeaseCast((holder("a", ends="drop", d=_X), holder("b", d=_X)), (START,))
_REVOKED = LeaseCast((holder("a", ends="leave", renews=1, d=_X), operator()), (START, DUE))
_MODES = LeaseCast((holder("a", d=_IX), holder("b", d=_S), holder("c", d=_SIX)), (START,))

LEASE_SHORT: dict[str, LeaseCast] = {
    "leases, 2 holders": LeaseCast((holder("a", d=_X), holder("b", d=_X))),
    "leases, 2 holders, one leaves": _LEFT,
    "leases, 2 holders, one leaves, the other without a session lease": LeaseCast(
        (holder("a", ends="leave", d=_X), holder("b", together=False, d=_X))
    ),
    "leases, 2 holders, one drops its session lease": _DROPPED,
    "leases, 2 holders, one drops its session lease, 1 fault": LeaseCast(
        (holder("a", ends="drop", d=_X), holder("b", d=_X)), (START,), faults=1
    ),
    "leases, holder that renews, operator": _REVOKED,
    "leases, IX, S, SIX": _MODES,
    "leases, IX, S, time passes": LeaseCast((holder("a", d=_IX), holder("b", d=_S)), (START, OVER)),
    "leases, 2 sets": LeaseCast((holder("a", d=_X, e=_X), holder("b", d=_X, e=_X)), (START,)),
    "leases, 2 sets of several modes": LeaseCast((holder("a", d=_SIX, e=_S), holder("b", d=_IX, e=_S)), (START,)),
}

LEASE_LONG: dict[str, LeaseCast] = {
    "leases, 2 holders, one leaves, 1 fault": LeaseCast((holder("a", ends="leave", d=_X), holder("b", d=_X)), faults=1),
    "leases, holder that renews, operator, successor": LeaseCast(
        (holder("a", ends="leave", renews=1, d=_X), operator(), holder("b", d=_X)), (START, DUE)
    ),
}

type _Mutant = tuple[tuple[ModuleType, str, str, str], LeaseCast, str]

LEASE_MUTANTS: dict[str, _Mutant] = {
    "session lease that is over brings no floor": (
        (
            sessions,
            "SessionRecord.brings",
            "return (self.over.expiry_ns, self.over.expiry_ns)",
            "return (0, self.over.expiry_ns)",
        ),
        _LEFT,
        leases.EXCLUSION,
    ),
    "session lease that is over brings no settle_to": (
        (
            sessions,
            "SessionRecord.brings",
            "return (self.over.expiry_ns, self.over.expiry_ns)",
            "return (self.over.expiry_ns, 0)",
        ),
        _LEFT,
        leases.SETTLED,
    ),
    "session lease that is dropped brings no floor": (
        (
            sessions,
            "SessionRecord.brings",
            "return (self.over.watermark_ns or 0, 0)",
            "return (0, 0)",
        ),
        _DROPPED,
        leases.EXCLUSION,
    ),
    "renewal forgets what was ended alone": (
        (
            sessions,
            "witness_of",
            "ended=session.ended",
            "ended=()",
        ),
        _REVOKED,
        leases.NAMED,
    ),
    "only X excludes": (
        (
            decisions,
            "conflicts",
            "return other not in _BESIDE[one]",
            "return Mode.X in (one, other)",
        ),
        _MODES,
        leases.EXCLUSION,
    ),
}
