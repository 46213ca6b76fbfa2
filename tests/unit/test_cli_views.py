"""``tenure view`` over a real root: the demo's balances, advanced, shown, listed and pruned."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from appliance.demo import bank
from tenure.__main__ import main
from tests.support.cluster import Site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    type Say = Callable[..., tuple[str, str]]


@pytest.fixture
def say(site: Site, capfd: pytest.CaptureFixture[str]) -> Say:
    """Run a command about the site in this process; return its standard output and error."""

    def run(*words: str, status: int = 0) -> tuple[str, str]:
        capfd.readouterr()
        done = main([*words, *site.options()])
        out, err = capfd.readouterr()
        assert done == status, (words, done, err)
        return out, err

    return run


def publish(site: Site, *entries: bank.Opening | bank.Transfer) -> None:
    with site.open() as cluster, cluster.session() as session, session.acquire("account/1") as leases:
        session.publish(bank.LOG, [bank.encode(entry) for entry in entries], under=leases)


def only(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def test_balances_are_advanced_shown_listed_and_pruned(say: Say, site: Site) -> None:
    publish(site, bank.Opening("1", "a", 10), bank.Opening("2", "b", 5))
    first = only(say("view", "advance", "balances", "--settle", "--json")[0])
    assert (first["schema"], first["messages"]) == ("tenure.view-advance", 2)
    publish(site, bank.Transfer("3", "a", "b", 4))
    out, _ = say("view", "advance", "balances", "--settle")
    assert out.startswith(first["path"])
    assert "3 messages" in out
    out, err = say("view", "show", "balances")
    assert json.loads(out)["balances"] == {"a": 6, "b": 9}
    assert "balances after 3 messages" in err
    shown = only(say("view", "show", "balances", "--json")[0])
    assert (shown["state"]["transfers"], shown["messages"], shown["path"]) == (1, 3, first["path"])
    (site.root / "views" / "foreign").touch()
    (site.root / "views" / "balances" / ("ab" * 32)).touch()
    (site.root / first["path"] / "foreign").mkdir()
    rows = [only(line) for line in say("view", "ls", "--json")[0].splitlines()]
    foreign, listed = sorted(rows, key=lambda each: each["checkpoints"])
    assert foreign["checkpoints"] == 0
    (site.root / "views" / "balances" / ("ab" * 32)).unlink()
    assert (listed["view"], listed["checkpoints"], listed["newest_ns"]) == ("balances", 2, shown["horizon_ns"])
    assert only(say("view", "prune", "balances", "--keep", "1", "--json")[0])["deleted"] == 1
    assert "1 checkpoint" in say("view", "ls")[0]
    assert json.loads(say("view", "show", "balances")[0])["balances"] == {"a": 6, "b": 9}


def test_view_without_a_checkpoint_says_how_to_make_one(say: Say, site: Site) -> None:
    publish(site, bank.Opening("1", "a", 10))
    assert say("view", "ls")[0] == ""
    assert "view advance balances" in say("view", "show", "balances", status=1)[1]


# Who may write to the mount makes any directory there.
def test_views_of_foreign_names_are_listed_as_text(say: Say, site: Site) -> None:
    (site.root / "views" / "\x1b[31m\n\udcff" / ("0" * 64)).mkdir(parents=True)
    shown = f"views/\\x1b[31m\\n\\xff/{'0' * 64}"
    assert say("view", "ls")[0] == f"{shown}  0 checkpoints\n"
    assert only(say("view", "ls", "--json")[0])["path"] == shown


def test_fold_of_ones_own_is_imported(say: Say, site: Site) -> None:
    publish(site, bank.Opening("1", "a", 10))
    spec = ("--fold", "appliance.demo.bank:BALANCES")
    assert "1 message" in say("view", "advance", "balances", *spec, "--settle")[0]


NEWEST = """
from tenure import Fold

RAW = Fold(
    view="raw", version=1, logs=("ledger",), initial=b"", decode=bytes, encode=bytes,
    step=lambda state, batch: batch.payloads()[-1],
)
"""


# A state is whatever the fold encodes: what only begins like JSON is shown as bytes.
@pytest.mark.parametrize("state", [b'"\xff"', b"[" * 100_000 + b"]" * 100_000, b"1e400", b'{"a', b""])
def test_state_that_is_no_json_is_shown_as_bytes(
    say: Say, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: bytes
) -> None:
    (tmp_path / "newest_fold.py").write_text(NEWEST, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with site.open() as cluster, cluster.session() as session, session.acquire("d") as leases:
        session.publish("ledger", [state], under=leases)
    spec = ("--fold", "newest_fold:RAW")
    say("view", "advance", "raw", *spec, "--settle")
    shown = only(say("view", "show", "raw", *spec, "--json")[0])
    assert base64.b64decode(shown["state_base64"]) == state


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("view", "advance", "nothing"), "no-such-view"),
        (("view", "advance", "balances", "--fold", "no.such:THING"), "bad-fold"),
        (("view", "advance", "balances", "--fold", "json:dumps"), "bad-fold"),
        (("view", "advance", "balances", "--fold", "json"), "bad-fold"),
        (("view", "advance", "balances", "--fold", ".:FOLD"), "bad-fold"),
        (("view", "advance", "balances", "--fold", "no_python:FOLD"), "bad-fold"),
        (("view", "advance", "other", "--fold", "appliance.demo.bank:BALANCES"), "bad-fold"),
        (("view", "prune", "balances", "--keep", "0"), "bad-keep"),
        (("view", "advance", "balances"), "no-such-log"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    say: Say, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: str
) -> None:
    (tmp_path / "no_python.py").write_text("FOLD =", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    if code != "no-such-log":
        publish(site, bank.Opening("1", "a", 10))
    assert f"[{code}]" in say(*words, status=2)[1]
