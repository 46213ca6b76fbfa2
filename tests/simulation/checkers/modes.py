"""Which modes exclude which: said here once more, from docs/protocol/lease.md."""

from __future__ import annotations

from appliance.formats.lease import Mode

_BESIDE = {
    Mode.IS: {Mode.IS, Mode.IX, Mode.S, Mode.SIX},
    Mode.IX: {Mode.IS, Mode.IX},
    Mode.S: {Mode.IS, Mode.S},
    Mode.SIX: {Mode.IS},
    Mode.X: set[Mode](),
}


def excludes(one: Mode, other: Mode) -> bool:
    """Whether nobody may hold the one while another holds the other."""
    return other not in _BESIDE[one]
