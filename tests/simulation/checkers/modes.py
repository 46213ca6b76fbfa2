"""Which modes exclude which: said here once more, from docs/protocol/lease.md."""

from __future__ import annotations

_BESIDE = {
    "IS": {"IS", "IX", "S", "SIX"},
    "IX": {"IS", "IX"},
    "S": {"IS", "S"},
    "SIX": {"IS"},
    "X": set[str](),
}


def excludes(one: str, other: str) -> bool:
    """Whether nobody may hold the one while another holds the other."""
    return other not in _BESIDE[one]
