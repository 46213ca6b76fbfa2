"""Each condition of the core's plain turn, broken once: the property that compares it with Python's must notice."""

from pathlib import Path

import pytest

from release.core import REPOSITORY
from tests.property import test_lease_plain as plain_tests
from tests.support.native import altered, loaded, made
from timeagent.core import NativeCore

TURN = "turn.c"
SAYING_MORE = "{WATERMARK_TIME, CHAIN_HEAD, MESSAGES, ABANDONED}"
MUTANTS = {
    "given back by another's name": ("memcmp(bytes, had_bytes, NAME_BYTES) != 0", "0"),
    "given back with the time of a watermark": (SAYING_MORE, "{CHAIN_HEAD, CHAIN_HEAD, MESSAGES, ABANDONED}"),
    "given back with a chain": (SAYING_MORE, "{WATERMARK_TIME, WATERMARK_TIME, MESSAGES, ABANDONED}"),
    "given back with messages": (SAYING_MORE, "{WATERMARK_TIME, CHAIN_HEAD, ABANDONED, ABANDONED}"),
    "given back although abandoned": (SAYING_MORE, "{WATERMARK_TIME, CHAIN_HEAD, MESSAGES, MESSAGES}"),
    "given back above the floor": ("PyObject_RichCompareBool(watermark, floor, Py_EQ)", "1"),
    "nobody is told that what was asked for is back": (
        "(found = PySequence_Contains(turn->places[RECALLED], name)) > 0",
        "0",
    ),
    "an end is not counted": ("turn->leases--;", ""),
    "an end or a grant is not taken back": ("(!noted && PyDict_SetItem(", "(0 && PyDict_SetItem("),
    "granted in another mode": ("mode != turn->kinds[EXCLUSIVE] || ", ""),
    "granted in another phase": ("phase != turn->kinds[HELD_PHASE] || ", ""),
    "granted under a session lease": ("session != Py_None ||", ""),
    "granted by an older map": ("map < turn->numbers[SINCE] || ", ""),
    "granted by a newer map": (" || map > turn->numbers[NEWEST]", ""),
    "granted although somebody waits": ("return found < 0 ? -1 : !found;", "return found < 0 ? -1 : 1;"),
    "granted twice to one request": ("PyObject_RichCompareBool(had, request_id, Py_EQ)", "0"),
    "new although it may not be": ("if (refused != Py_None)", "if (0)"),
    "granted for no time": ("expiry <= numbers[LATEST] || ", ""),
    "fence above the ceiling": (" || fence >= numbers[CEILING]", ""),
    "term longer than the longest": ("least(term, numbers[TERM_MAX])", "term"),
    "expiry later than asked for": ("least(until_max, numbers[HIGHEST])", "numbers[HIGHEST]"),
    "expiry above the highest": ("least(until_max, numbers[HIGHEST])", "until_max"),
    "fence of the domain forgotten": ("most(left.fence, numbers[FENCE_MIN])", "numbers[FENCE_MIN]"),
    "fence of the shard forgotten": ("most(left.fence, numbers[FENCE_MIN])", "left.fence"),
    "new domains are not counted": ("turn->domains += kept == Py_None;", ""),
    "leases are not counted": ("turn->leases++;", ""),
    "counts are told too late": ("if (tell_counts(turn) < 0 || (at =", "if ((at ="),
    "the witness of this turn is forgotten": (" || PyDict_SetItem(turn->places[ANSWERS], name, index) < 0", ""),
    "hints are given unasked": ("if (found && (hints =", "if ((hints ="),
    "an odd node is hashed": ("made = one;", "made = PyList_GetItem(below, 0);"),
    "a path has its hashes of another place": (
        "sized(PyList_GetItem(level, at ^ 1), DIGEST_BYTES)",
        "sized(PyList_GetItem(level, at), DIGEST_BYTES)",
    ),
}


def the_same(native: NativeCore) -> None:
    for seed in range(60):
        plain_tests.both(plain_tests.history(seed, 40), native)


def test_each_mutant_can_be_planted() -> None:
    source = (REPOSITORY / "native" / TURN).read_text(encoding="utf-8")
    assert [name for name, (old, _) in MUTANTS.items() if source.count(old) != 1] == []


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_core_is_noticed(name: str, tmp_path: Path) -> None:
    native = loaded(made(tmp_path, sources=altered(tmp_path / "native", TURN, *MUTANTS[name])))
    with pytest.raises(AssertionError):
        the_same(native)
