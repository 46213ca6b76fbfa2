"""The command replay: at an instant, step by step, following a domain, and what if."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from appliance.formats.birth import open_birth
from appliance.formats.framing import Kind, pack
from appliance.formats.stamped import Stamped
from auditor.audit import audit
from auditor.evidence.finding import RULES
from auditor.evidence.tree import Tree
from tenure.__main__ import main
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.fixtures import Story, eventful_tree, small_tree
from tests.fault_injection.moving import moved_tree
from timeagent.canonical import encode
from timeagent.keys import Signer, public_line
from timeagent.units import INSTANT_MAX, MS, SECOND, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fault_injection.tree import ClusterTree


def run(*arguments: str | Path) -> int:
    return main(["replay", *map(str, arguments)])


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert run(*arguments, "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_state_at_an_instant_in_text_names_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(tmp_path)
    story.written()
    instant = story.tree.now_ns
    story.done()
    assert run(tmp_path, "--at", rfc3339(instant)) == 0
    text = capsys.readouterr().out
    assert f"state at {rfc3339(instant)}" in text
    for word in ("alice", "held", "n2:", "Log orders", "pending", "Clocks", "open"):
        assert word in text
    assert run(tmp_path) == 0
    assert "sealed" in capsys.readouterr().out


def test_json_is_the_same_state_and_the_same_bytes_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    instant = story.tree.now_ns
    story.done()
    document = shown(capsys, tmp_path, "--at", str(instant))
    assert (document["schema"], document["version"], document["instant_ns"]) == ("tenure.replay", 1, instant)
    (domain,) = document["domains"]
    (held,) = domain["leases"]
    assert (held["phase"], held["expiry_ns"]) == ("held", lease.witness.expiry_ns)
    assert document["logs"][0]["delivered"] == 0
    assert document["what_if"] is None
    assert shown(capsys, tmp_path, "--at", str(instant)) == document
    end = shown(capsys, tmp_path, "--newest", "5")
    assert [each["length"] for each in end["logs"][0]["newest"]] == [3, 3]


def test_steps_go_by_event_by_bag_and_along_one_domain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_tree(tmp_path)
    events = shown(capsys, tmp_path, "--step", "event")["steps"]
    assert [step["instant_ns"] for step in events] == sorted(step["instant_ns"] for step in events)
    bags = shown(capsys, tmp_path, "--step", "bag")["steps"]
    assert [step["event"] for step in bags] == ["bag-closed"] * len(bags)
    assert bags[-1]["delivered"] == 3
    alice = shown(capsys, tmp_path, "--step", "event", "--domain", "alice")["steps"]
    assert 0 < len(alice) < len(events)
    half = shown(capsys, tmp_path, "--step", "event", "--from", str(events[3]["instant_ns"]), "--to", "end")["steps"]
    assert half[-1] == events[-1]
    assert run(tmp_path, "--step", "bag") == 0
    assert "delivered" in capsys.readouterr().out


# What is asked of a database is answered in the same bytes as of the tree that it was made of.
def test_database_alone_answers_as_the_tree_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, file = tmp_path / "tree", tmp_path / "index"
    tree = eventful_tree(root)
    middle = str(tree.now_ns - 3 * SECOND)
    asked: list[tuple[str, ...]] = [
        (),
        ("--at", "start"),
        ("--at", middle, "--json"),
        ("--domain", "alice"),
        ("--step", "event"),
        ("--step", "bag", "--json"),
        ("--step", "event", "--domain", "alice", "--from", middle),
    ]
    of_tree = [(run(root, *each), capsys.readouterr().out) for each in asked]
    assert run(root, "--db", file) == 0
    assert run(root, "--db", file, "--newest", "2") == 0
    assert "bytes  under" in capsys.readouterr().out
    shutil.rmtree(root)
    assert [(run("--db", file, *each), capsys.readouterr().out) for each in asked] == of_tree


def test_database_alone_says_what_it_cannot_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, file, key = tmp_path / "tree", tmp_path / "index", tmp_path / "key.pub"
    tree = small_tree(root)
    assert run(root, "--db", file) == 0
    key.write_text(public_line(Signer(bytes(32)).public, "another") + "\n")
    for arguments, code in (
        ((), "no-path"),
        (("--db", tmp_path / "absent"), "no-index"),
        (("--db", file, "--newest", "1"), "needs-tree"),
        (("--db", file, "--grace", "1s"), "needs-tree"),
        (("--db", file, "--drop-late"), "needs-tree"),
        (("--db", file, "--root-key", key), "other-root-key"),
    ):
        assert run(*arguments) == 2
        said = capsys.readouterr().err
        assert f"[{code}]" in said
        assert "way out" in said
    assert tree.root.is_dir()


# Its head is whole: what is wrong is found where it is read.
@pytest.mark.parametrize(
    "damage", ["UPDATE piece SET value = x'c1'", "UPDATE piece SET value = NULL", "DELETE FROM piece"]
)
def test_database_with_a_damaged_piece_is_refused_by_name(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "index"
    assert run(eventful_tree(tmp_path / "tree").root, "--db", file) == 0
    apsw.Connection(str(file)).execute(damage)
    assert run("--db", file, "--step", "event") == 2
    said = capsys.readouterr().err
    assert "[not-an-index]" in said
    assert str(file) in said


def test_steps_over_nothing_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_tree(tmp_path)
    for arguments, code in ((("--from", "end", "--to", "start"), "empty-range"), (("--log", "none"), "no-such-log")):
        assert run(tmp_path, "--step", "event", *arguments) == 2
        said = capsys.readouterr()
        assert f"[{code}]" in said.err
        assert "way out" in said.err
        assert said.out == ""


def late(root: Path) -> ClusterTree:
    """A listed file that was signed four seconds after the end of its bag, and one that came after the list."""
    story = Story(root)
    lease, _ = story.written()
    bag = story.grid.bag(story.tree.now_ns)
    story.tree.advance(1500_000_000)
    missed = story.writer.publish(story.grid, lease, bag=bag, at=bag.start_ns + 900_000_000)
    story.tree.advance(4 * SECOND)
    story.tree.close(bag, omit=[missed.rpartition("/")[2]])
    return story.done()


def test_another_grace_lets_in_what_came_late_or_keeps_out_what_did_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late(tmp_path)

    def outcome(*switches: str) -> tuple[int, list[str], list[str]]:
        document = shown(capsys, tmp_path, *switches)
        changed = document["what_if"] or {"findings_more": [], "findings_fewer": []}
        more, fewer = ([each["code"] for each in changed[key]] for key in ("findings_more", "findings_fewer"))
        return document["logs"][0]["delivered"], more, fewer

    assert outcome() == (2, [], [])
    delivered, more, fewer = outcome("--grace", "5s")
    assert (delivered, more, fewer) == (4, [], ["late-writer"])
    delivered, more, fewer = outcome("--drop-late")
    assert (delivered, more, fewer) == (2, [], ["late-writer"])


def test_shift_of_a_clock_changes_what_it_signed_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_tree(tmp_path)
    as_it_was = shown(capsys, tmp_path)
    document = shown(capsys, tmp_path, "--shift", "n2=+3s")
    assert document["logs"][0]["delivered"] < as_it_was["logs"][0]["delivered"]
    codes = {each["code"] for each in document["what_if"]["findings_more"]}
    assert "r1-breach" in codes
    assert document["what_if"]["shift_ns"] == {"n2": 3 * SECOND}
    same = shown(capsys, tmp_path, "--shift", "n2=0s")["what_if"]
    assert (same["findings_more"], same["findings_fewer"]) == ([], [])


# What one clock signed stays in its order, however far it is moved: its right, its batches, and when leases ended.
@pytest.mark.parametrize(
    ("shift", "titles"),
    [
        ("n1=-2s", {"a lease ended before its watermark was signed"}),
        ("n1=+2s", {"a watermark was signed before its lease was granted"}),
        (
            "n2=-2s",
            {"a watermark is too far from its signed time", "a watermark was signed before its lease was granted"},
        ),
        ("n2=+2s", {"a watermark is too far from its signed time", "a lease ended before its watermark was signed"}),
    ],
)
def test_shift_moves_all_that_a_clock_said_of_leases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shift: str, titles: set[str]
) -> None:
    small_tree(tmp_path)
    more = shown(capsys, tmp_path, "--shift", shift)["what_if"]["findings_more"]
    of_leases = {each["title"] for each in more if not each["subject"].startswith("logs/")}
    assert of_leases - {RULES["term-above-policy"].title} == titles


@pytest.mark.parametrize("span", [f"+{INSTANT_MAX}ns", f"-{INSTANT_MAX}ns"])
def test_clock_is_shifted_as_far_as_a_span_can_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], span: str
) -> None:
    small_tree(tmp_path)
    document = shown(capsys, tmp_path, "--shift", f"n2={span}")
    assert "r1-breach" in {each["code"] for each in document["what_if"]["findings_more"]}


# Leases end with their session leases; either half of one is written under with the other.
@pytest.mark.parametrize("make", [eventful_tree, moved_tree])
def test_lens_that_changes_nothing_finds_nothing(
    make: Callable[[Path], ClusterTree], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    assert shown(capsys, tmp_path, "--drop-late")["findings"] == []


# The copy was begun before the policy that allows it was published.
def test_lens_accuses_nobody_whom_a_later_policy_may_allow_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = Story(tmp_path)
    story.written()
    number = story.tree.change_policy(lease_term_max_ns=20 * SECOND)
    story.shard.grant("longer", story.writer, change={"expiry_ns": story.shard.ceiling_ns})
    story.tree.remove(f"policy/{number:08x}")
    assert {each.code for each in audit(Tree(tmp_path)).findings} == {"unverifiable-policy"}
    told = shown(capsys, tmp_path, "--shift", "n2=0s")["findings"]
    assert {each["code"] for each in told} == {"unverifiable-policy"}


# Whoever closes a bag before its end breaks a rule by what came after only.
@pytest.mark.parametrize("late", [False, True], ids=["nothing", "late"])
def test_lens_says_of_a_bag_that_was_closed_too_early_what_that_made_void(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, late: bool
) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    bag = story.grid.bag(story.tree.now_ns)
    story.tree.nodes["n2"].time.advance(MS)
    story.tree.close(bag)
    if late:
        story.writer.publish(story.grid, lease, bag=bag, commits=False)
    story.shard.end(lease)
    (told,) = (each for each in audit(Tree(tmp_path)).findings if each.code == "premature-lock")
    found = shown(capsys, tmp_path, "--shift", "n1=0s")["findings"]
    (by_lens,) = (each for each in found if each["code"] == "premature-lock")
    assert by_lens["verdict"] == told.verdict.value == ("violation" if late else "ok")


# An append in doubt that was repeated: readers count it once, and so does its lease.
@pytest.mark.parametrize("close", [False, True], ids=["open", "closed"])
def test_lens_counts_equal_frames_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], *, close: bool) -> None:
    story = Story(tmp_path)
    lease, path = story.written()
    story.tree.put(path.replace(".00000001.", ".00000002."), story.tree.get(path))
    story.shard.end(lease)
    if close:
        story.done()
    assert shown(capsys, tmp_path, "--shift", "n2=0s")["findings"] == []
    assert shown(capsys, tmp_path, "--shift", "n2=1ns")["findings"] == []


def test_shift_that_explains_a_finding_makes_it_vanish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    granted_while_held(tmp_path)
    fewer = shown(capsys, tmp_path, "--shift", "n1=+60s")["what_if"]["findings_fewer"]
    assert [each["verdict"] for each in fewer if each["code"] == "early-grant"] == ["violation"]
    assert run(tmp_path, "--shift", "n1=+60s") == 0
    assert "What if:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--at", "noon"), "bad-instant"),
        (("--shift", "n1"), "bad-shift"),
        (("--shift", "n1=+-3s"), "bad-span"),
        (("--shift", "n9=1s"), "no-such-node"),
        (("--domain", "nobody"), "no-such-domain"),
        (("--step", "event", "--domain", "nobody"), "no-such-domain"),
        (("--from", "start"), "no-step"),
        (("--step", "event", "--at", "end"), "two-instants"),
        (("--step", "bag", "--domain", "alice"), "bag-of-domain"),
    ],
)
def test_wrong_use_is_named_with_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: str
) -> None:
    small_tree(tmp_path)
    assert run(tmp_path, *arguments) == 2
    said = capsys.readouterr().err
    assert f"[{code}]" in said
    assert "way out" in said


# 0 is a floor that nothing moved, and no day of 1970; a copy of the records alone has no record with a time at all.
def test_what_has_no_time_is_not_shown_as_a_day_of_1970(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_tree(tmp_path / "small")
    for step in ((), ("--step", "event"), ("--step", "bag")):
        assert run(*step, tmp_path / "small") == 0
    out = capsys.readouterr().out
    assert "floor none" in out
    assert not {"1970", "00:00:00.000"} & set(re.findall(r"1970|00:00:00\.000", out))
    for name in ("logs", "shards", "ledger"):
        shutil.rmtree(tmp_path / "small" / name)
    assert run(tmp_path / "small") == 0
    assert capsys.readouterr().out.startswith("nothing in this copy says when it was")


# Its bags are read all the same.
def test_log_whose_birth_is_stamped_with_no_time_is_there_from_its_first_bag_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = small_tree(tmp_path / "tree")
    stamped = Stamped(body=open_birth(tree.get("logs/orders/log"), "")[1].body, time=bytes(128))
    tree.put("logs/orders/log", pack(Kind.BIRTH, encode(stamped)))
    assert main(["audit", str(tree.root), "--db", str(tmp_path / "index")]) == 1
    assert "the signed time of a log's birth record is none" in capsys.readouterr().out
    for arguments in ((tree.root,), ("--db", tmp_path / "index")):
        (log,) = shown(capsys, *arguments)["logs"]
        assert (log["log"], log["delivered"]) == ("orders", 3)
        born = next(
            each for each in shown(capsys, *arguments, "--step", "event")["steps"] if each["event"] == "log-born"
        )
        assert (born["node"], born["instant_ns"]) == (None, tree.grids["orders"].first_ns)


# It is on a terminal that their names are shown, and a terminal obeys.
def test_who_closed_and_sealed_by_made_up_names_is_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = small_tree(tmp_path)
    grid = tree.grids["orders"]
    tree.close(grid.bag(grid.first_ns + SECOND), change={"closer": "\x1b[2Jn2"})
    tree.seal(grid.rack(grid.first_ns), change={"sealer": "\x1b[2Jn1"})
    for step in ((), ("--step", "event"), ("--step", "bag")):
        assert run(tmp_path, *step) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\\x1b[2Jn" in out
