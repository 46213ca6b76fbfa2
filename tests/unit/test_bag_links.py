"""A symbolic link where a directory or a file of ours belongs: refused by name, never followed, named by the audit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from appliance.bag import posix
from appliance.bag.packer import Packer, PackState
from appliance.bag.posix import PosixStorage
from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.formats.birth import BagKind
from appliance.formats.closed import PACK
from appliance.formats.paths import LOCK, SEAL
from auditor.audit import audit
from auditor.evidence.tree import Tree
from tests.fault_injection.tree import START_NS, ClusterTree
from tests.support.killing import Process, pack, payload_of, seal
from timeagent.errors import Damaged, Environment
from timeagent.units import MINUTE, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BAG_NS = START_NS + 5 * SECOND
"""In a bag that nobody has written to."""


class Place:
    """A tree with one committed message, and a directory elsewhere that a link may lead to."""

    def __init__(self, path: Path, kind: BagKind = BagKind.MAILDIR) -> None:
        self.tree = ClusterTree(path / "root")
        self.kind = kind
        self.root = self.tree.root
        self.elsewhere = path / "elsewhere"
        self.elsewhere.mkdir()
        (self.elsewhere / "precious").write_text("x")
        self.first = self.process()
        assert self.first.writer.write(self.first.attempt(1, payload_of(1))) == Committed()
        self.rack = self.first.grid.rack(START_NS)

    def process(self, later_ns: int = 0) -> Process:
        return Process(self.tree, self.kind, "n1", later_ns)

    def untouched(self) -> bool:
        return {path.name: path.read_bytes() for path in self.elsewhere.iterdir()} == {"precious": b"x"}

    def settled(self) -> list[bytes]:
        return [message.payload for message in self.process(MINUTE).reader.settled()]

    def moved_away(self, path: str) -> Path:
        """Move what is there elsewhere, and leave a link to it."""
        there = self.root / path
        target = self.elsewhere.parent / "moved"
        there.rename(target)
        there.symlink_to(target)
        return target

    def subjects(self) -> set[tuple[str, str]]:
        return {(finding.code, finding.subject) for finding in audit(Tree(self.root)).findings}


@pytest.fixture(params=list(BagKind))
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(tmp_path, request.param)


def link_to(place: Place, level: str) -> Path:
    """Put a link where a bag, or the rack after, will be."""
    rack = place.first.grid.next_rack(place.rack)
    path = place.first.grid.bag(BAG_NS).path if level == "bag" else rack.path
    stray = place.root / path
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.symlink_to(place.elsewhere)
    return stray


@pytest.mark.parametrize("level", ["bag", "rack"])
def test_link_in_the_place_of_a_directory_is_refused_by_everyone_and_when_it_is_moved_all_goes_on(
    place: Place, level: str
) -> None:
    stray = link_to(place, level)
    instant = BAG_NS if level == "bag" else place.rack.end_ns
    late = instant - START_NS + MINUTE
    process = place.process(instant - START_NS)
    attempt = process.attempt(2, payload_of(2), instant)
    outcome = process.writer.write(attempt)
    assert isinstance(outcome, Unknown)
    assert f"{stray.name} is a symbolic link" in outcome.reason

    later = place.process(late)
    deeds: dict[str, Callable[[], object]] = {
        "close": lambda: later.authority.close(process.grid.bag(instant)),
        "settle": lambda: later.horizon.settle(instant + SECOND),
        "seal": lambda: later.authority.sealer.seal(process.grid.rack(instant)),
        "latest": lambda: list(later.reader.latest()),
    }
    for deed in deeds.values():
        with pytest.raises(Environment) as refused:
            deed()
        assert refused.value.code == "not-a-directory"
        assert stray.name in refused.value.message
        assert "move it out of the way" in (refused.value.hint or "")
    assert place.untouched()

    stray.unlink()
    assert isinstance(place.process(late).writer.resolve(attempt), NotCommitted)
    place.process(late).authority.sealer.seal(process.grid.rack(instant))
    assert place.settled() == [payload_of(1)]


# Without the refusal everybody works on through the link, and nobody says anything.
def test_link_that_is_followed_is_caught(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix, "_DIRECTORY_OPEN", posix._DIRECTORY_OPEN & ~os.O_NOFOLLOW)
    monkeypatch.setattr(PosixStorage, "_refuse_link", lambda *_: True)
    link_to(place, "bag")
    process = place.process(BAG_NS - START_NS)
    assert process.writer.write(process.attempt(2, payload_of(2), BAG_NS)) == Committed()
    assert not place.untouched()


def test_link_in_the_place_of_a_bag_that_is_not_in_the_seal_is_left_where_it_is(place: Place) -> None:
    seal(place.tree, place.kind, print)
    link_to(place, "bag")
    late = place.process(MINUTE)
    report = Packer(late.context, late.grid, late.authority.sealer).pack(place.rack)
    assert (report.state, report.swept, len(report.left)) == (PackState.PACKED, 1, 1)
    assert place.untouched()
    assert place.settled() == [payload_of(1)]


# The file is as long as the writer left it: only its being a link tells that somebody else put it there.
def test_log_file_that_became_a_link_is_not_appended_to(tmp_path: Path) -> None:
    place = Place(tmp_path, BagKind.LOG)
    bag = place.first.grid.bag(START_NS)
    (own,) = (place.root / bag.path).glob("*.log")
    target = place.moved_away(f"{bag.path}/{own.name}")
    before = target.read_bytes()
    assert place.first.writer.write(place.first.attempt(2, payload_of(2))) == Committed()
    assert target.read_bytes() == before
    assert len(list((place.root / bag.path).glob("*.log"))) == 2


def close(place: Place) -> str:
    later = place.process(4 * SECOND)
    bag = later.grid.bag(START_NS)
    later.authority.close(bag)
    return f"{bag.path}/{LOCK}"


def sealed(place: Place) -> str:
    seal(place.tree, place.kind, print)
    return f"{place.rack.path}/{SEAL}"


def packed(place: Place) -> str:
    sealed(place)
    pack(place.tree, place.kind, print)
    return f"{place.rack.path}/{PACK}"


@pytest.mark.parametrize("made", [close, sealed, packed])
def test_list_or_pack_that_became_a_link_is_damage_that_is_named(place: Place, made: Callable[[Place], str]) -> None:
    path = made(place)
    target = place.moved_away(path)
    before = target.read_bytes()
    later = place.process(5 * SECOND if made is close else MINUTE)

    def read() -> None:
        later.horizon.settle(START_NS + SECOND)
        list(later.reader.settled())

    with pytest.raises(Damaged) as refused:
        read()
    assert path in refused.value.message
    assert target.read_bytes() == before
    assert ("unreadable", path) in place.subjects()


# Of the second bag: that the first one is there is looked up, with another eye, before anything is read.
@pytest.mark.parametrize("wanted", ["everything", "one bag"])
def test_sealed_bag_whose_directory_became_a_link_is_not_read_through_it(place: Place, wanted: str) -> None:
    process = place.process(BAG_NS - START_NS)
    attempt = process.attempt(2, payload_of(2), BAG_NS)
    assert process.writer.write(attempt) == Committed()
    sealed(place)
    bag = attempt.bag
    target = place.moved_away(bag.path)
    names = frozenset(path.name for path in target.iterdir())
    later = place.process(MINUTE)
    later.horizon.settle(bag.end_ns)
    with pytest.raises(Environment) as refused:
        list(later.reader.settled() if wanted == "everything" else later.reader.in_files({bag.start_ns: names}, 0))
    assert refused.value.code == "not-a-directory"
    assert bag.name in refused.value.message

    (place.root / bag.path).unlink()
    target.rename(place.root / bag.path)
    assert place.settled() == [payload_of(1), payload_of(2)]


@pytest.mark.parametrize("level", ["bag", "rack"])
def test_audit_names_a_link_in_the_place_of_a_directory(place: Place, level: str) -> None:
    stray = link_to(place, level)
    findings = [finding for finding in audit(Tree(place.root)).findings if stray.name in str(finding)]
    assert [finding.code for finding in findings] == ["unreadable"]
