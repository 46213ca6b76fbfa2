"""The lab's referee, table and fallback, without any machine: a verdict that cannot be another one is none."""

import json
import re
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.bag.ports import Published
from appliance.demo.bank import Opening, Transfer, encode
from tests.nfs_lab import loopback, referee, rulebook, run, table
from tests.nfs_lab.channel import Channel
from tests.nfs_lab.rules import NOT_SHOWN, RULES
from tests.nfs_lab.share import dependencies, make_disk
from tests.nfs_lab.simulated import Simulated, allowed
from tests.simulation.mount import SimulatedMount

OPENINGS = [Opening(id=f"open-{n}", account=f"account/{n}", amount=100) for n in range(2)]
TRANSFERS = [Transfer(id=f"t{n}", source="account/0", target="account/1", amount=30) for n in range(3)]


def reading(*entries: Opening | Transfer) -> list[dict[str, Any]]:
    return [{"payload": encode(entry).decode()} for entry in entries]


WHOLE = reading(*OPENINGS, *TRANSFERS)
TOLD = {"open-0", "open-1", "t0", "t1", "t2"}


def objections(told: set[str] | None = None, before: list[str] | None = None, **readings: list[dict[str, Any]]) -> str:
    return "; ".join(referee.compare(TOLD if told is None else told, {"node1": WHOLE, **readings}, before or []))


def test_referee_has_nothing_against_a_record_that_keeps_its_promises() -> None:
    assert objections(node2=WHOLE) == ""
    assert objections(told={"t0"}, node2=WHOLE[:-1], before=referee.ids(WHOLE[:2])) == ""


def test_referee_names_what_was_acknowledged_and_is_not_read() -> None:
    assert "node1 does not read 1 that were acknowledged: t9" in objections({*TOLD, "t9"})
    assert "node2 does not read 1 that were acknowledged: t2" in objections(node2=WHOLE[:-1])


def test_referee_names_a_node_that_reads_another_order() -> None:
    swapped = [*WHOLE[:2], WHOLE[3], WHOLE[2], WHOLE[4]]
    assert "node2 and another do not read the same from message 2 on" in objections(node2=swapped)


# What was settled once stays so: a later reading only goes on from there.
def test_referee_names_a_reading_that_changed_since_an_earlier_one() -> None:
    assert "an earlier reading and another do not read the same from message 0" in objections(before=["t0", "open-0"])


def test_referee_names_money_that_was_made_spent_twice_or_counted_twice() -> None:
    assert "money is not conserved" not in objections()
    assert "1 messages are there twice" in "; ".join(referee.compare(set(), {"node1": [*WHOLE, WHOLE[-1]]}, []))
    broke = reading(*OPENINGS, *TRANSFERS, Transfer(id="t3", source="account/0", target="account/1", amount=30))
    assert "an account fell to -20" in "; ".join(referee.compare(set(), {"node1": broke}, []))


class Site:
    """Two nodes that read what is there; they end a reading at a cursor that is its length."""

    def __init__(self) -> None:
        self.there = WHOLE[:3]
        self.asked: list[tuple[str, str]] = []
        self.lab = SimpleNamespace(nodes=[SimpleNamespace(name=name, on=True) for name in ("node1", "node2")])

    def read(self, node: SimpleNamespace, log: str, after: str) -> tuple[list[dict[str, Any]], str]:
        assert log == "bank"
        self.asked.append((node.name, after))
        return self.there[int(after or 0) :], str(len(self.there))


# A whole record is a minute's work for an emulated machine.
def test_referee_goes_on_where_each_node_stopped_and_reads_all_of_it_when_told_to(tmp_path: Path) -> None:
    site = Site()
    judge = referee.Referee(site, None, tmp_path)  # type: ignore[arg-type]
    readings = judge.read()
    assert readings == {"node1": WHOLE[:3], "node2": WHOLE[:3]}
    site.there = WHOLE
    assert judge.read() == {"node1": WHOLE, "node2": WHOLE}
    assert sorted(site.asked) == [("node1", ""), ("node1", "3"), ("node2", ""), ("node2", "3")]
    site.there = WHOLE[:4]
    assert judge.read(anew=True) == {"node1": WHOLE[:4], "node2": WHOLE[:4]}


# Whoever follows a program of a machine that lost its power must not wait for it when the machine is back.
def test_finding_is_known_again_when_its_message_has_moved_into_a_pack_and_only_then() -> None:
    def known(code: str, subject: str, identity: str) -> str:
        return referee.known_as({"code": code, "subject": subject, "id": identity})

    loose = known("forged-witness", "logs/bank/16-20/7/a.msg under lease 18ea on 'demo/forged'", "1")
    assert known("forged-witness", "logs/bank/16-20/pack under lease 18ea on 'demo/forged'", "2") == loose
    assert known("forged-witness", "logs/bank/16-20/pack under lease 18eb on 'demo/forged'", "2") != loose
    assert known("lease-expired", "logs/bank/16-20/pack under lease 18ea on 'demo/forged'", "2") != loose
    assert known("altered-file", "logs/bank/16-20/pack", "1") != known("altered-file", "logs/bank/16-20/pack", "2")


def test_what_was_asked_by_a_connection_that_is_over_has_ended_for_the_next_one() -> None:
    machines, hosts = zip(*(socket.socketpair() for _ in range(2)), strict=True)
    try:
        first = Channel("node1", hosts[0])
        asked = first.ask(follow="sleep 1000")
        assert not first.answered(asked)
        machines[0].close()
        assert first.awake(30) is False
        assert first.answered(asked)
        second = Channel("node1", hosts[1])
        assert second.answered(asked)
        assert not second.answered(second.ask(follow="sleep 1000"))
    finally:
        for each in (*machines, *hosts):
            each.close()


def row(**fields: object) -> dict[str, object]:
    return {
        "scenario": "writer-power",
        "vers": "4.2",
        "shown": "taken over after 15 s",
        "objections": [],
        "findings": {"late-writer": 2},
        "seconds": 60,
        "cuts": 1,
        **fields,
    }


def test_table_shows_what_was_run_and_says_what_was_not(tmp_path: Path) -> None:
    results, document = tmp_path / "results", tmp_path / "page.md"
    rows = [row(), row(vers="3", objections=["node1 does not read 1"])]
    results.write_text("".join(json.dumps(each) + "\n" for each in rows))
    document.write_text(f"before\n{table.BEGIN}\nearlier figures\n{table.END}\nafter\n")
    table.write_table(document, results, run.SHOWN)
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "earlier figures" not in text
    assert "taken over after 15 s. Audit: late-writer 2 | OBJECTION: node1 does not read 1 |" in text
    assert "not run | not run |" in text
    assert "2 scenarios played, 2 power cuts, 2 minutes of load, 1 with objections" in text


def test_document_of_the_project_has_a_row_for_every_scenario(repository: Path) -> None:
    text = (repository / "docs" / "verification.md").read_text(encoding="utf-8")
    inside = text.partition(table.BEGIN)[2].partition(table.END)[0]
    for scenario in run.SHOWN:
        assert f"| {scenario.title} | {scenario.promised} |" in inside, scenario.name


# What one of the machines could have shown: of each rule something, and of one of them what no simulated mount does.
def test_what_the_simulator_never_shows_is_an_objection_and_stands_in_the_table() -> None:
    may = {rule.title: allowed(rule, 3) for rule in RULES}
    good = {title: dict.fromkeys(sights, 1) for title, sights in may.items()}
    assert rulebook.objections(good, may) == []
    planted = "a won, b won, the content is of a"
    bad = {**good, "both link onto one name": {planted: 2}}
    assert rulebook.objections(bad, may) == [
        f"both link onto one name: {planted!r} was seen 2 times, and the simulator never shows it"
    ]
    text = "\n".join(rulebook.lines({"4.2": good, "3": bad}, may))
    assert f"NOT ALLOWED: {planted} (2)" in text
    assert "does not allow: 1." in text
    del bad["a size is true at once"]
    assert "a size is true at once: nothing was seen" in rulebook.objections(bad, may)


@pytest.mark.parametrize(
    ("broken", "value", "title", "shows"),
    [
        ("revalidates", False, "an absence, after look", "hidden"),
        ("counts_links", False, "a link whose reply was lost, the server crashed", "lost, told EEXIST; '1' is there"),
        ("size_of", lambda *_: 3, "a size is true at once", "3, then 3"),
        ("_hidden", lambda *_: False, "a directory looked for in vain", "seen"),
        ("publish", lambda *_: Published.ABSENT, "a directory removed and made again: publish", "absent, then absent"),
        ("_ask_permission", lambda *_: None, "a directory without permission, for the owner", "ensure_marker True"),
    ],
)
def test_a_mount_that_breaks_a_rule_is_caught_by_its_play(
    broken: str, value: object, title: str, shows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = next(rule for rule in RULES if rule.title == title)
    may = allowed(rule)
    monkeypatch.setattr(SimulatedMount, broken, value)
    seen = Simulated(1).play(rule)
    found = rulebook.objections({title: dict.fromkeys(seen, 1)}, {title: may})
    assert len(found) == 1
    assert shows in found[0]


def test_every_rule_of_the_simulated_mount_is_played_or_named_with_the_reason(repository: Path) -> None:
    files = ("test_mount.py", "test_mount_failures.py")
    texts = [(repository / "tests" / "simulation" / name).read_text(encoding="utf-8") for name in files]
    stated = {name for text in texts for name in re.findall(r"^def test_(\w+)", text, re.MULTILINE)}
    played = {name for rule in RULES for name in rule.tests}
    assert played | NOT_SHOWN.keys() == stated
    assert not played & NOT_SHOWN.keys()


def test_document_has_a_row_for_every_rule_and_nothing_that_is_not_allowed(repository: Path) -> None:
    text = (repository / "docs" / "nfs.md").read_text(encoding="utf-8")
    inside = text.partition(rulebook.RULES_BEGIN)[2].partition(rulebook.RULES_END)[0]
    may = rulebook.simulated()
    for title, sights in may.items():
        row = next(line for line in inside.splitlines() if line.startswith(f"| {title} | "))
        assert row.split(" | ")[1] == " / ".join(sorted(sights)), "run python -m tests.nfs_lab.run --write"
    assert "NOT ALLOWED" not in inside


def test_without_machines_and_without_an_export_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(loopback, "missing", lambda: "mounting needs root")
    assert loopback.run_loopback("no qemu", said.append) == 0
    assert said == [
        "NO VIRTUAL MACHINES: no qemu",
        "AND NO LOOPBACK EXPORT: mounting needs root",
        "NOTHING OF THE LAB WAS COVERED",
    ]


def test_machines_get_what_tenure_depends_on_and_nothing_of_the_workshop() -> None:
    found = dependencies("tenure")
    assert {"apsw", "cryptography", "cffi", "msgspec", "numpy", "textual"} <= set(found)
    assert {"pytest", "mypy", "hypothesis", "greenlet", "duckdb"}.isdisjoint(found)


@pytest.mark.slow
def test_shared_disk_holds_interpreter_packages_and_both_versions(tmp_path: Path, repository: Path) -> None:
    if shutil.which("mke2fs") is None:
        pytest.skip("there is no mke2fs: apt install e2fsprogs")
    make_disk(tmp_path / "share.img", {"next": repository}, [], tmp_path)
    assert (tmp_path / "share.img").stat().st_size == 1 << 30
    assert not (tmp_path / "share").exists()
