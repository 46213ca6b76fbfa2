"""A log whose bags are in another store: judged with both copies, and with either of them alone nobody is accused."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import msgspec
import pytest

from appliance.formats.birth import open_birth
from appliance.formats.framing import Kind, pack
from auditor.audit import Options, audit
from auditor.columns.parts import Narrowing
from auditor.evidence.finding import Verdict
from auditor.evidence.opening import open_tree, where_words, whereabouts
from auditor.report.formats import json_fields
from tenure.__main__ import main
from tests.fault_injection.faults_missing import no_copy_of_the_store_that_a_committed_frame_is_in
from tests.fault_injection.fixtures import small_tree
from timeagent.canonical import encode, encode_for_ever
from timeagent.errors import BadRequest
from timeagent.units import SECOND

ELSEWHERE = "s3://bucket/elsewhere"


class Copies:
    """The tree of both, and copies of root and store."""

    def __init__(self, place: Path) -> None:
        self.whole, self.root, self.store = place / "whole", place / "root", place / "store"
        small_tree(self.whole, ELSEWHERE)
        shutil.copytree(self.whole, self.root)
        shutil.rmtree(self.root / "logs/orders")
        (self.root / "logs/orders").mkdir()
        shutil.copy(self.whole / "logs/orders/log", self.root / "logs/orders")
        shutil.copytree(self.whole / "logs", self.store / "logs")
        (self.store / "logs/orders/log").unlink()


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


def test_both_copies_are_judged_as_the_tree_of_both(copies: Copies) -> None:
    joined = audit(open_tree(copies.root, [copies.store]))
    assert joined.findings == ()
    assert json_fields(joined) == json_fields(audit(open_tree(copies.whole)))
    assert json_fields(joined)["summary"]["messages"] == 3


def test_copy_of_the_store_may_be_a_tar_file(copies: Copies) -> None:
    with tarfile.open(copies.store.with_suffix(".tar"), "w") as archive:
        archive.add(copies.store, "copy")
    joined = open_tree(copies.root, [copies.store.with_suffix(".tar")])
    assert json_fields(audit(joined)) == json_fields(audit(open_tree(copies.whole)))


def test_breach_in_the_store_is_found(copies: Copies) -> None:
    file = next(copies.store.rglob("*.msg"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    found = audit(open_tree(copies.root, [copies.store])).findings
    assert [(each.code, each.subject) for each in found] == [("altered-file", str(file.relative_to(copies.store)))]


def test_root_alone_names_the_store_that_was_not_copied_and_accuses_nobody(copies: Copies) -> None:
    result = audit(open_tree(copies.root))
    (finding,) = result.findings
    assert (finding.code, finding.verdict) == ("unverifiable-log", Verdict.UNVERIFIABLE)
    assert ELSEWHERE in finding.explanation
    assert json_fields(result)["summary"]["messages"] == 0


def test_log_in_a_store_that_was_not_copied_is_left_out_like_any_other(tmp_path: Path) -> None:
    tree = no_copy_of_the_store_that_a_committed_frame_is_in(tmp_path)
    assert audit(open_tree(tree.root), options=Options(narrowing=Narrowing(logs=("orders",)))).findings == ()


def test_birth_record_is_judged_without_its_store(copies: Copies) -> None:
    path = copies.root / "logs/orders/log"
    birth, stamped = open_birth(path.read_bytes(), "a birth")
    forged = encode_for_ever(msgspec.structs.replace(birth, grace_ns=0))
    path.write_bytes(pack(Kind.BIRTH, encode(msgspec.structs.replace(stamped, body=forged))))
    assert {each.code for each in audit(open_tree(copies.root)).findings} == {"forged-time", "unverifiable-log"}


def test_store_alone_is_a_part_that_accuses_nobody(copies: Copies) -> None:
    result = audit(open_tree(copies.store))
    assert {each.verdict for each in result.findings} <= {Verdict.UNVERIFIABLE, Verdict.INDETERMINATE}
    assert {each.code for each in result.findings} >= {"unverifiable-trust", "unverifiable-policy"}
    assert json_fields(result)["summary"]["bags"] > 0


# Which of its directories are bags of the log, and what may be in them, follows from it.
def test_what_was_kept_of_a_log_is_forgotten_with_the_birth_record_in_its_store(copies: Copies, tmp_path: Path) -> None:
    options, path = Options(index_file=tmp_path / "index"), copies.whole / "logs/orders/store"
    path.with_name("log").unlink()  # of a copy that was broken off, say
    audit(open_tree(copies.whole), options=options)
    birth, stamped = open_birth(path.read_bytes(), "a birth")
    later = encode_for_ever(msgspec.structs.replace(birth, created_ns=birth.created_ns + 2 * SECOND))
    path.write_bytes(pack(Kind.BIRTH, encode(msgspec.structs.replace(stamped, body=later))))
    assert json_fields(audit(open_tree(copies.whole), options=options)) == json_fields(audit(open_tree(copies.whole)))


def test_what_is_left_in_the_store_by_who_did_not_make_the_log_is_not_its_bags(copies: Copies) -> None:
    (copies.store / "logs/orders/store").write_bytes(b"another")
    with pytest.raises(BadRequest) as caught:
        open_tree(copies.root, [copies.store])
    assert caught.value.code == "no-store"


def test_report_says_what_was_judged(copies: Copies, capsys: pytest.CaptureFixture[str]) -> None:
    place = whereabouts(open_tree(copies.root, [copies.store]))
    assert where_words(place).endswith(f" and {copies.store}")
    assert main(["audit", str(copies.root), "--store", str(copies.store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tree"]["stores"][0]["path"] == str(copies.store)
    assert main(["audit", str(copies.root)]) == 3
    assert ELSEWHERE in capsys.readouterr().out
