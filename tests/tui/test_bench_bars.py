"""The bars of ``make bench-tui``: what misses one ends with 1. What is measured is planted."""

from typing import Any

import pytest

from tests.bench import bench_tui, bench_tui_keys, bench_tui_record
from tests.bench.tui_bars import KEY_MS_MAX, MEMORY_MB_MAX, PAINT_MS_MAX, SHARE_MAX, told

LIVE = {"leases": 10_000, "share": SHARE_MAX, "memory_mb": MEMORY_MB_MAX}
SCREENS = {
    "leases": 10,
    "messages": 10,
    "import_ms": PAINT_MS_MAX / 2,
    "paint_ms": PAINT_MS_MAX / 2,
    "memory_mb": 1.0,
    "keys_ms": {"j": KEY_MS_MAX, bench_tui.FLOOR: 1.0},
    "moved": {"j": (8, 8)},
}
RECORD = {
    "events": 1,
    "paint_ms": PAINT_MS_MAX,
    "memory_mb": MEMORY_MB_MAX,
    "keys_ms": dict.fromkeys(bench_tui_record.KEYS, KEY_MS_MAX),
    "drawn_ms": dict.fromkeys(bench_tui_record.KEYS, 99.0),
    "moved": {"bag on": (7, 12)},
}


def test_what_keeps_its_bars_ends_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_tui, "child", lambda kind, *_: LIVE if kind == "--live" else SCREENS)
    assert bench_tui.report(short=False) == 0
    assert bench_tui_record.missed(10, RECORD) == []


@pytest.mark.parametrize(
    ("worse", "words"),
    [
        ({"share": 0.101}, "share of a core 0.101, at most 0.1"),
        ({"share": float("nan")}, "share of a core nan"),
        ({"memory_mb": 150.1}, "memory, MB 150.1, at most 150"),
        ({"keys_ms": {"j": 10.1}}, "key j, ms 10.1, at most 10"),
        ({"moved": {"j": (4, 8)}}, "key j changed what is shown 4 times of 8"),
        ({"paint_ms": 501.0}, "first paint, ms 1001, at most 1000"),
    ],
)
def test_each_bar_that_is_missed_live_ends_with_1(
    worse: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def child(kind: str, *_: str) -> dict[str, Any]:
        found: dict[str, Any] = LIVE if kind == "--live" else SCREENS
        return {**found, **{name: each for name, each in worse.items() if name in found}}

    monkeypatch.setattr(bench_tui, "child", child)
    assert bench_tui.report(short=False) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("worse", "words"),
    [
        ({"keys_ms": {"event back": 10.1}}, "key event back, ms 10.1, at most 10"),
        ({"moved": {"bag on": (6, 12)}}, "key bag on changed what is shown 6 times of 12"),
        ({"memory_mb": 150.1}, "memory, MB 150.1"),
        ({"paint_ms": 1_000.1}, "first paint"),
    ],
)
def test_each_bar_that_a_record_misses_is_named(worse: dict[str, Any], words: str) -> None:
    (line,) = bench_tui_record.missed(10, {**RECORD, **worse})
    assert words in line
    assert told([line]) == 1


def test_key_in_a_terminal_that_takes_too_long_or_writes_nothing_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    for ms, size, code in ((10.0, 1, 0), (10.1, 1, 1), (10.0, 0, 1)):
        monkeypatch.setattr(bench_tui_keys, "measured", lambda *_, ms=ms, size=size: {"leases": (ms, size)})
        assert bench_tui_keys.report("10") == code
