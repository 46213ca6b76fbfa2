"""A bundle: one finding's evidence in a tar file, audited elsewhere to the same finding."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import IO

import pytest

import auditor.audit as auditing
from appliance.formats.closed import LockEntry, SealEntry
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.opening import TarTree, open_tree
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.explain.bundle import make_bundle
from auditor.explain.context import context_of
from tenure.__main__ import main
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.fixtures import small_tree
from tests.fault_injection.plants import all_plants
from tests.fault_injection.shard import Shard
from tests.fault_injection.tree import ClusterTree, seed
from tests.fault_injection.writer import Writer
from tests.support.jsonschema import problems
from tests.support.mutants import plant
from tests.support.shares import shares
from tests.support.timelines import read_timeline
from timeagent.keys import Signer, public_line
from timeagent.units import SECOND

SIGNATURES = Signatures()
SHARES = 4
"""Of the kinds of findings."""
Capture = pytest.CaptureFixture[str]


def run(command: str, *arguments: str | Path) -> int:
    return main([command, *map(str, arguments)])


def bundled(tmp_path: Path) -> tuple[Path, str, Path]:
    """Return the tree, the finding's id, and the bundle of it."""
    tree = granted_while_held(tmp_path / "tree")
    (finding,) = audit(Tree(tree.root), signatures=SIGNATURES).findings
    key = tmp_path / "root.pub"
    key.write_text(public_line(tree.root_key.public, "ours") + "\n")
    assert run("bundle", finding.id, tree.root, "--output", tmp_path / "x.tar", "--root-key", key) == 0
    return key, finding.id, tmp_path / "x.tar"


def test_bundle_is_audited_elsewhere_to_the_same_finding(repository: Path, tmp_path: Path, capsys: Capture) -> None:
    key, identifier, bundle = bundled(tmp_path)
    capsys.readouterr()
    assert run("audit", bundle, "--root-key", key, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert [finding["id"] for finding in document["findings"]] == [identifier]
    assert document["bundle"] == {"finding": identifier, "confirmed": True}
    assert document["root_key_pinned"] is True
    assert run("audit", bundle, "--root-key", key, "--json", "--domain", "alice") == 1
    assert json.loads(capsys.readouterr().out)["narrowed_to"]["domains"] == ["alice"]
    schema = json.loads((repository / "docs/schemas/tenure.audit.v1.json").read_text())
    assert list(problems(document, schema)) == []
    assert run("audit", bundle) == 1
    assert run("explain", identifier, bundle, "--svg") == 1


def test_bundle_that_was_changed_shows_nothing_any_more(tmp_path: Path, capsys: Capture) -> None:
    _, identifier, bundle = bundled(tmp_path)
    changed = tmp_path / "changed.tar"
    with tarfile.open(bundle) as source, tarfile.open(changed, "w") as target:
        for member in source:
            data = bytearray(source.extractfile(member).read())  # type: ignore[union-attr]
            if member.name.endswith(".ledger"):
                data[len(data) // 2] ^= 1
            target.addfile(member, io.BytesIO(data))
    capsys.readouterr()
    assert run("audit", changed, "--json") == 3
    shown = capsys.readouterr()
    assert json.loads(shown.out)["bundle"] == {"finding": identifier, "confirmed": False}
    assert "does not show that" in shown.err


def test_bundle_of_another_cluster_does_not_pass_with_the_pinned_key(tmp_path: Path, capsys: Capture) -> None:
    _, _, bundle = bundled(tmp_path)
    other = tmp_path / "other.pub"
    other.write_text(public_line(bytes(range(32)), "other") + "\n")
    capsys.readouterr()
    assert run("audit", bundle, "--root-key", other) == 3


def test_same_finding_gives_the_same_bytes_and_not_the_whole_tree(tmp_path: Path, capsys: Capture) -> None:
    root = tmp_path / "big"
    tree = granted_while_held(root)
    for number in range(40):  # a log that has nothing to do with it
        tree.put(f"logs/other/2026-11-20/22-00-00/x{number}", b"y" * 1000)
    identifier = next(each.id for each in audit(Tree(root)).findings if each.code == "early-grant")
    made = []
    for name in ("a.tar", "b.tar"):
        assert run("bundle", identifier, root, "--output", tmp_path / name) == 0
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]
    names = TarTree(tmp_path / "a.tar").names("logs")
    assert ("other", True) not in names
    capsys.readouterr()


def test_bundle_goes_to_stdout_and_to_no_file_that_is_there(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, identifier, bundle = bundled(tmp_path)
    capsysbinary.readouterr()
    assert run("bundle", identifier, tmp_path / "tree") == 0
    assert capsysbinary.readouterr().out == bundle.read_bytes()
    assert run("bundle", identifier, tmp_path / "tree", "--output", bundle) == 2
    assert b"[file-exists]" in capsysbinary.readouterr().err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert run("bundle", identifier, tmp_path / "tree") == 2


@pytest.mark.parametrize("manifest", [b"", b"[]", b"{}", b'{"schema": "tenure.bundle", "version": 9, "finding": "x"}'])
def test_manifest_that_is_none_is_refused(tmp_path: Path, capsys: Capture, manifest: bytes) -> None:
    granted_while_held(tmp_path / "tree")
    (tmp_path / "tree" / "BUNDLE").write_bytes(manifest)
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(tmp_path / "tree", arcname=".")
    assert run("audit", tmp_path / "x.tar") == 65
    assert "[bad-bundle]" in capsys.readouterr().err


# Else one name in a copy makes its audit silent about all but one finding, be it about that very name.
def test_manifest_in_a_directory_hides_no_finding(tmp_path: Path, capsys: Capture) -> None:
    tree = granted_while_held(tmp_path / "tree")
    manifest = {"schema": "tenure.bundle", "version": 1, "finding": "0" * 12}
    (tree.root / "BUNDLE").write_text(json.dumps(manifest))
    found = {each.code: each.id for each in audit(Tree(tree.root), signatures=SIGNATURES).findings}
    assert set(found) == {"early-grant", "foreign-file"}
    (tree.root / "BUNDLE").write_text(json.dumps(manifest | {"finding": found["foreign-file"]}))
    assert run("audit", tree.root) == 1
    assert "early-grant" in capsys.readouterr().out


def test_report_of_a_bundle_says_that_it_is_of_one_finding(tmp_path: Path, capsys: Capture) -> None:
    _, identifier, bundle = bundled(tmp_path)
    capsys.readouterr()
    assert run("audit", bundle) == 1
    assert f"this is a bundle, of finding {identifier}" in capsys.readouterr().err


# Who was given one passes on what counts of it: nothing is lost, and nothing is added, however often.
@pytest.mark.parametrize("code", ["early-grant", "altered-file", "lost-frame", "r2-breach", "unverifiable-trust"])
def test_bundle_made_out_of_a_bundle_is_the_same_bundle(code: str, tmp_path: Path) -> None:
    tree: Tree = Tree(all_plants()[code][0](tmp_path / "tree").root)
    whole = min(audit(tree, signatures=SIGNATURES).findings, key=lambda each: each.code != code)
    made: list[bytes] = []
    for number in range(3):
        result = audit(tree, signatures=SIGNATURES)
        (finding,) = (each for each in result.findings if each.id == whole.id)
        timeline = read_timeline(tree, signatures=SIGNATURES, findings=result.findings)
        bundle = make_bundle(finding, tree, context_of(finding, timeline), None)
        with bundle.file as file:
            assert bundle.confirmed
            file.seek(0)
            made.append(file.read())
        path = tmp_path / f"{number}.tar"
        path.write_bytes(made[-1])
        tree = TarTree(path)
    assert made[1] == made[2]
    assert made[0] == made[1]


def test_bundle_that_needs_all_of_a_bundle_has_one_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, identifier, bundle = bundled(tmp_path)
    tree = TarTree(bundle)
    result = audit(tree, signatures=SIGNATURES)
    (finding,) = (each for each in result.findings if each.id == identifier)
    timeline = read_timeline(tree, signatures=SIGNATURES, findings=result.findings)
    monkeypatch.setattr("auditor.explain.bundle._shows", lambda *_: False)
    with make_bundle(finding, tree, context_of(finding, timeline), None).file as file:
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            names = archive.getnames()
    assert names.count("BUNDLE") == 1


@pytest.mark.parametrize("share", shares(SHARES))
def test_every_kind_of_finding_is_bundled_and_found_again(tmp_path: Path, share: int) -> None:
    unshown = set()  # what cannot be read cannot be packed either
    planted = dict(list(all_plants().items())[share::SHARES])
    for number, (code, plants) in enumerate(planted.items()):
        tree = Tree(plants[0](tmp_path / str(number)).root)
        result = audit(tree, signatures=SIGNATURES)
        finding = next(each for each in result.findings if each.code == code)
        timeline = read_timeline(tree, signatures=SIGNATURES, findings=result.findings)
        bundle = make_bundle(finding, tree, context_of(finding, timeline), None)
        with bundle.file:
            if not bundle.confirmed:
                unshown.add(code)
    assert unshown == {"unreadable"} & planted.keys()


def unwitnessed(root: Path) -> ClusterTree:
    """A part of a tree: neither marker nor records, and of the only log nothing but its directory."""
    tree = small_tree(root)
    shutil.rmtree(root / "logs/orders")
    (root / "logs/orders").mkdir()
    for name in ("policy", "trust", "map", "shards", "ledger"):
        shutil.rmtree(root / name)
    tree.remove("TENURE")
    return tree


def test_finding_of_a_part_of_a_tree_is_bundled_and_found_again(tmp_path: Path) -> None:
    tree = Tree(unwitnessed(tmp_path / "tree").root)
    findings = audit(tree, signatures=SIGNATURES).findings
    assert {each.code for each in findings} == {"unverifiable-log", "unverifiable-trust", "unverifiable-policy"}
    timeline = read_timeline(tree, signatures=SIGNATURES, findings=findings)
    for finding in findings:
        with make_bundle(finding, tree, context_of(finding, timeline), None).file as file:
            file.seek(0)
            (tmp_path / "x.tar").write_bytes(file.read())
        there = audit(open_tree(tmp_path / "x.tar"), signatures=SIGNATURES).findings
        assert finding.id in {each.id for each in there}


def test_bundle_is_refused_where_a_tar_file_can_show_nothing(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "logs").mkdir(parents=True)
    (root / "TENURE").symlink_to("elsewhere")
    finding = next(each for each in audit(Tree(root)).findings if each.code == "unreadable")
    assert run("bundle", finding.id, root, "--output", tmp_path / "x.tar") == 3


# Whoever made the copy would have the auditor hand out what is on the auditor's own machine.
@pytest.mark.parametrize("bag", ["../../../../../outside", "notes/link", "zero\0byte"])
def test_no_name_in_a_seal_leads_out_of_the_tree(bag: str, tmp_path: Path, capsys: Capture) -> None:
    tree, outside = small_tree(tmp_path / "tree"), tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret" * 777)
    grid = tree.grids["orders"]
    rack = grid.rack(grid.first_ns)
    (tree.root / rack.path / "notes").mkdir()
    (tree.root / rack.path / "notes" / "link").symlink_to(outside)
    listed = (LockEntry(name="secret", size=1, digest=bytes(32)),)
    lock = tree.close(grid.bag(tree.now_ns), change={"entries": listed}, put=False)
    tree.seal(rack, change={"entries": (SealEntry(bag=bag, lock=lock),)})
    findings = audit(Tree(tree.root), signatures=SIGNATURES).findings
    assert {"damaged-seal", "lost-file"} & {each.code for each in findings}
    for each in findings:
        assert {run("explain", each.id, tree.root, *form) for form in ((), ("--json",), ("--chain",))} <= {0, 1}
        assert run("bundle", each.id, tree.root, "--output", tmp_path / f"{each.id}.tar") in {0, 3}
        assert b"secret" * 777 not in (tmp_path / f"{each.id}.tar").read_bytes()
    assert "4662 bytes" not in capsys.readouterr().out


# It is on a terminal that what was written there is shown, and a terminal obeys.
@pytest.mark.parametrize("form", ["text", "json", "jsonl", "sarif", "junit"])
def test_manifest_that_names_what_is_no_finding_is_shown_escaped(form: str, tmp_path: Path, capsys: Capture) -> None:
    tree = small_tree(tmp_path / "tree")
    manifest = {"schema": "tenure.bundle", "version": 1, "finding": "\x1b[2J\ud800"}
    tree.put("BUNDLE", json.dumps(manifest).encode())
    name = shutil.make_archive(str(tmp_path / "x"), "tar", tree.root, ".")
    assert run("audit", name, "--format", form) == 3
    said = capsys.readouterr()
    assert "finding \\x1b[2J\\ud800" in said.err
    assert "\x1b" not in said.out + said.err


# Who asks for a comparison must not take silence for agreement.
@pytest.mark.parametrize("words", [("--against", "tree"), ("--only", "r2-*")])
def test_bundle_is_not_held_against_a_copy_nor_cut_by_codes(
    words: tuple[str, str], tmp_path: Path, capsys: Capture
) -> None:
    _, _, bundle = bundled(tmp_path)
    capsys.readouterr()
    option, value = words
    assert run("audit", bundle, option, tmp_path / value if option == "--against" else value) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "[bundle-alone]" in said.err


def test_half_a_bundle_is_not_left_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    tree = granted_while_held(tmp_path / "tree")
    (finding,) = audit(Tree(tree.root), signatures=SIGNATURES).findings

    def full(_: object, target: IO[bytes]) -> None:
        target.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    assert run("bundle", finding.id, tree.root, "--output", tmp_path / "x.tar") == 74
    assert "No space left" in capsys.readouterr().err
    assert not (tmp_path / "x.tar").exists()


def test_disk_that_is_full_is_said_once_and_leaves_nothing(tmp_path: Path) -> None:
    tree = granted_while_held(tmp_path / "tree").root
    (finding,) = audit(Tree(tree), signatures=SIGNATURES).findings
    (tmp_path / "temporary").mkdir()
    said = subprocess.run(
        [sys.executable, "-m", "tenure", "bundle", finding.id, str(tree), "--output", str(tmp_path / "x.tar")],
        env=os.environ | {"TMPDIR": str(tmp_path / "temporary")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 74
    assert "Traceback" not in said.stderr
    assert not list((tmp_path / "temporary").iterdir())


def forgers_tree(root: Path) -> ClusterTree:
    """A tree with all its trust records, in which a stranger's keys sign for its nodes; a bag names a later record."""
    tree = ClusterTree(root)
    for node in tree.nodes.values():
        node.time_key = node.time.signer = Signer(seed("forger", node.name, "time"))
        node.witness_key = Signer(seed("forger", node.name, "witness"))
    shard, writer = Shard(tree), Writer(tree)
    tree.advance(SECOND)
    lease = shard.grant("alice", writer)
    tree.advance(SECOND)
    shard.grant("alice", Writer(tree, "n1"))
    tree.advance(SECOND)
    grid = tree.log("bait")
    writer.publish(grid, lease, change={"trust_number": 2})
    bag = grid.bag(tree.now_ns)
    tree.until(bag.due_ns + SECOND)
    tree.close(bag, change={"trust_number": 2})
    return tree


# Where a trust record may be missing, signatures of keys that no record has are let through: anybody makes those.
def test_evidence_by_keys_of_nobody_accuses_nobody_and_is_not_confirmed(tmp_path: Path, capsys: Capture) -> None:
    tree, key = forgers_tree(tmp_path / "tree"), tmp_path / "root.pub"
    key.write_text(public_line(tree.root_key.public, "ours") + "\n")
    findings = audit(Tree(tree.root), root_key=tree.root_key.public).findings
    assert not [each for each in findings if each.verdict is Verdict.VIOLATION]
    (early,) = (each for each in findings if each.code == "early-grant")
    assert "which signed of it, is in no trust record of the copy" in early.explanation
    assert run("bundle", early.id, tree.root, "--output", tmp_path / "x.tar", "--root-key", key) == 3
    capsys.readouterr()
    run("audit", tmp_path / "x.tar", "--root-key", key, "--json")
    assert json.loads(capsys.readouterr().out)["bundle"]["confirmed"] is False


def test_judge_who_takes_what_anybody_signed_for_proof_accuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, auditing, "_AuditRun._concluded", "isinstance(records.keys, PartialKeyring)", "False")
    found = audit(Tree(forgers_tree(tmp_path).root)).findings
    assert "early-grant" in {each.code for each in found if each.verdict is Verdict.VIOLATION}
