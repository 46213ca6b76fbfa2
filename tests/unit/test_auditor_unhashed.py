"""An audit that hashes no payload: what it finds is found by the whole audit too, and it says that it saw less."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import pytest

from auditor.audit import Options, audit
from auditor.cli import COMMANDS
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.report.formats import json_fields, text_lines
from auditor.rules.result import exit_status
from tests.bench.corpus.build import build
from tests.fault_injection.fixtures import small_tree
from tests.fault_injection.plants import all_plants

if TYPE_CHECKING:
    from pathlib import Path

UNHASHED = Options(hashed=False)
BLIND = {"altered-file", "damaged-frame", "damaged-pack", "last-frame-mismatch"}
"""What may be missed without hashing: bytes inside data files and packs."""


def codes(root: Path, options: Options, signatures: Signatures) -> set[tuple[str, str]]:
    return {(each.code, each.subject) for each in audit(Tree(root), signatures=signatures, options=options).findings}


@pytest.mark.verify
@pytest.mark.parametrize("code", sorted(all_plants()))
def test_nothing_but_altered_bytes_is_missed(tmp_path: Path, code: str) -> None:
    signatures = Signatures()
    for number, plant in enumerate(all_plants()[code]):
        root = tmp_path / str(number)
        plant(root)
        whole, less = codes(root, Options(), signatures), codes(root, UNHASHED, signatures)
        if code not in BLIND:
            assert less == whole, plant.__name__


def test_an_altered_payload_is_missed_and_a_shorter_file_is_not(tmp_path: Path) -> None:
    build(tmp_path, 5120, message_bytes=50)
    path = next(iter(sorted((tmp_path / "logs").rglob("*.log"))))
    data = bytearray(path.read_bytes())
    data[-30] ^= 1  # the last message of the last frame
    path.write_bytes(data)
    signatures = Signatures()
    assert {code for code, _ in codes(tmp_path, Options(), signatures)} >= {"altered-file"}
    assert codes(tmp_path, UNHASHED, signatures) == set()
    path.write_bytes(data[:-1])
    assert "altered-file" in {code for code, _ in codes(tmp_path, UNHASHED, signatures)}


@pytest.mark.parametrize("packed", [False, True])
def test_breaches_in_a_large_tree_are_found_without_hashing(tmp_path: Path, *, packed: bool) -> None:
    planted = {"r1-breach": 2, "forged-witness": 1, "grant-overlap": 1, "lost-frame": 1, "sequence-reused": 1}
    build(tmp_path, 5 * 5120, message_bytes=10, packed=packed, plant=planted)
    signatures = Signatures()
    assert codes(tmp_path, UNHASHED, signatures) == codes(tmp_path, Options(), signatures)
    assert codes(tmp_path, Options(hashed=False, jobs=2), signatures) == codes(tmp_path, Options(), signatures)


def test_the_report_and_the_exit_code_say_that_less_was_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_tree(tmp_path)
    result = audit(Tree(tmp_path), options=UNHASHED)
    assert not result.findings
    assert exit_status(result) == 3
    assert json_fields(result)["payloads_hashed"] is False
    assert any("not hashed" in line for line in text_lines(result))
    assert "payloads_hashed" not in json_fields(audit(Tree(tmp_path)))
    for more, status in (((), 3), (("--fail-on", "unverifiable"), 3), (("--fail-on", "violation"), 0)):
        parser = argparse.ArgumentParser()
        COMMANDS["audit"].add_arguments(parser)
        arguments = parser.parse_args([str(tmp_path), "--json", "--no-payload-hash", *more])
        assert COMMANDS["audit"].run(arguments) == status
        assert json.loads(capsys.readouterr().out)["payloads_hashed"] is False


def test_what_was_read_without_hashing_is_no_part_of_a_whole_audit(tmp_path: Path) -> None:
    small_tree(tmp_path / "tree")
    index = tmp_path / "index"
    audit(Tree(tmp_path / "tree"), options=Options(hashed=False, index_file=index))
    path = next(iter(sorted((tmp_path / "tree" / "logs").rglob("*.msg"))))
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    assert path.stat().st_size == before.st_size
    found = audit(Tree(tmp_path / "tree"), options=Options(index_file=index)).findings
    assert "altered-file" in {each.code for each in found}
