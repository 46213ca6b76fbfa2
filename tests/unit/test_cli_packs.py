"""``tenure bag pack|retain|forecast``, and what ``ls`` and ``show`` say of packed and deleted racks."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bag.packer import Packer
from appliance.cli import bags
from appliance.formats.closed import PACK
from tests.support.racks import FILES, SealedRack
from tests.support.storage import MemoryStorage
from timeagent.errors import BadRequest, Damaged, Environment
from timeagent.units import DAY, INSTANT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

type Say = Callable[..., list[dict[str, Any]]]


class Wired:
    """A sealed rack behind the verbs, as an open cluster gives them to it."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.sealed = SealedRack()
        self.capsys = capsys
        opened = SimpleNamespace(grid=self.sealed.node.grid)
        context = self.sealed.node.context
        self.cluster: Any = SimpleNamespace(context=context, logs=SimpleNamespace(opened=lambda _: opened))

    def run(self, verb: Callable[[Any, argparse.Namespace], int], status: int = 0, **options: object) -> dict[str, Any]:
        """Run a verb for people, then for programs; return what programs are told."""
        fields: dict[str, object] = {"log": "events", "all": False, "days": None, "dry_run": False, "last": 0}
        assert verb(self.cluster, argparse.Namespace(**(fields | options), json=True)) == status
        said: dict[str, Any] = json.loads(self.capsys.readouterr().out.splitlines()[0])
        return said

    def words(self, verb: Callable[[Any, argparse.Namespace], int], **options: object) -> str:
        fields: dict[str, object] = {"log": "events", "all": False, "days": None, "dry_run": False, "last": 0}
        verb(self.cluster, argparse.Namespace(**(fields | options), json=False))
        return self.capsys.readouterr().out


@pytest.fixture
def wired(capsys: pytest.CaptureFixture[str]) -> Wired:
    return Wired(capsys)


def test_rack_goes_from_sealed_to_packed_to_retained(wired: Wired) -> None:
    bag = wired.sealed.files[0].bag.path
    assert wired.run(bags._list)["state"] == "sealed"
    packed = wired.run(bags.pack)
    assert (packed["packed"], packed["directories_removed"], packed["damaged"]) == (1, 3, [])
    assert "packed 0 racks" in wired.words(bags.pack, all=True)
    listed = wired.run(bags._list)
    assert (listed["state"], listed["bags"]) == ("packed", [])
    assert listed["pack_bytes"] == wired.sealed.storage.size_of(f"{wired.sealed.rack.path}/{PACK}")
    assert "packed" in wired.words(bags._list)
    assert [row["state"] for row in wired.run(bags._show, path=bag)["files"]] == ["packed"]
    wired.sealed.node.time.advance(4 * DAY)
    kept = wired.run(bags.retain, days=3, dry_run=True)
    assert (len(kept["packs"]), kept["bytes"]) == (1, listed["pack_bytes"])
    assert wired.run(bags._list)["state"] == "packed"
    assert "deleted 1 pack of racks" in wired.words(bags.retain, days=3)
    assert wired.run(bags._list)["state"] == "retained"
    assert [row["state"] for row in wired.run(bags._show, path=bag)["files"]] == ["retained: gone"]
    assert wired.run(bags.retain, days=3)["packs"] == []


def test_rack_that_cannot_be_packed_is_told_and_keeps_its_bags(wired: Wired) -> None:
    storage = wired.sealed.storage
    assert isinstance(storage, MemoryStorage)
    path = f"{wired.sealed.files[0].bag.path}/{wired.sealed.files[0].name.text()}"
    storage.files[path] = storage.files[path][:-1] + b"?"
    said = wired.run(bags.pack, status=65)
    assert (said["packed"], said["directories_removed"], len(said["damaged"])) == (0, 0, 1)
    assert path in storage.files
    wired.sealed.node.time.advance(4 * DAY)
    assert wired.run(bags.retain, days=1)["not_packed"] == [wired.sealed.rack.path]


def test_damage_of_a_rack_is_told_also_where_the_next_one_cannot_be_looked_at(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = iter([Damaged("file-altered", "the first is damaged"), Environment("mount-failed", "the second")])

    def refuse(*_: object, **__: object) -> None:
        raise next(problems)

    monkeypatch.setattr(bags, "racks_there", lambda *_: [wired.sealed.rack] * 2)
    monkeypatch.setattr(Packer, "pack", refuse)
    with pytest.raises(Environment, match="the second"):
        wired.words(bags.pack)
    assert "the first is damaged" in wired.capsys.readouterr().err


@pytest.mark.parametrize("days", [0, 1_000_000, 10**30])
def test_retention_of_no_days_or_beyond_all_time_is_refused(wired: Wired, days: int) -> None:
    with pytest.raises(BadRequest, match="at least one"):
        wired.run(bags.retain, days=days)


def test_retention_as_long_as_can_be_deletes_nothing(wired: Wired) -> None:
    assert wired.run(bags.retain, days=INSTANT_MAX // DAY)["packs"] == []


def test_forecast_beyond_all_time_is_refused(wired: Wired) -> None:
    with pytest.raises(BadRequest, match=f"no more than {INSTANT_MAX // DAY} days"):
        wired.run(bags.show_forecast, days=10**400)


def test_forecast_is_told_to_people_and_programs(wired: Wired) -> None:
    wired.run(bags.pack)
    said = wired.run(bags.show_forecast, days=30)
    assert said["names_for_ever_per_day"] == 3 * said["racks_per_day"]
    assert said["bytes_of_packs"] == 30 * said["pack_bytes_per_day"] > FILES
    assert "names that stay for ever" in wired.words(bags.show_forecast)
