"""Loading: whoever reads the tree, from wherever, however often, the verdict is the same bytes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from auditor.audit import Options, audit
from auditor.columns.parts import Narrowing
from auditor.commands.running import progress_text
from auditor.evidence.opening import TarTree, open_tree
from auditor.evidence.tree import Tree
from auditor.report.formats import json_bytes
from auditor.rules.result import Audit, exit_status
from tenure.__main__ import main
from tests.bench.corpus.build import build
from tests.fault_injection.fixtures import eventful_tree, small_tree
from tests.fault_injection.tree import ClusterTree
from timeagent.errors import BadRequest, Damaged, TenureError
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from auditor.evidence.tree import Opened

PLANTED = {"r1-breach": 1, "forged-witness": 1, "count-mismatch": 1, "lost-file": 1, "grant-overlap": 1}
NO_RUN = pytest.mark.skipif(shutil.which("tar") is None, reason="no tar: NOTHING is known about copies made with it")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of four racks and two logs, with breaches."""
    root = tmp_path_factory.mktemp("corpus") / "tree"
    build(root, 5 * 5120, message_bytes=20, plant=PLANTED)
    return root


@pytest.fixture(scope="module")
def verdict(planted: Path) -> bytes:
    return json_bytes(audit(Tree(planted)))


def told(path: Path, **options: object) -> bytes:
    return json_bytes(audit(open_tree(path), options=Options(**options)))  # type: ignore[arg-type]


def codes(result: Audit) -> set[str]:
    return {finding.code for finding in result.findings}


def test_the_verdict_names_what_was_planted(planted: Path, verdict: bytes) -> None:
    assert all(f'"code":"{code}"'.encode() in verdict for code in PLANTED if code != "count-mismatch")


@pytest.mark.parametrize("jobs", [4, pytest.param(2, marks=pytest.mark.slow)])
def test_several_processes_say_the_same(planted: Path, verdict: bytes, jobs: int) -> None:
    assert told(planted, jobs=jobs) == verdict


def test_without_a_place_for_a_shared_index(planted: Path, verdict: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    assert told(planted, jobs=2) == verdict


@NO_RUN
def test_copies_say_the_same(planted: Path, verdict: bytes, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", planted, tmp_path / "copied"], check=True)
    (tmp_path / "unpacked").mkdir()
    subprocess.run(f"tar -C {planted} -cf - . | tar -C {tmp_path}/unpacked -xf -", shell=True, check=True)
    for each in (tmp_path / "unpacked").rglob("*"):
        os.utime(each, (1, 1))
        each.chmod(0o700)
    assert told(tmp_path / "copied") == verdict
    assert told(tmp_path / "unpacked", jobs=2) == verdict


@NO_RUN
def test_a_tar_file_says_the_same(planted: Path, verdict: bytes, tmp_path: Path) -> None:
    subprocess.run(["tar", "-C", planted.parent, "-cf", tmp_path / "tree.tar", "tree"], check=True)
    assert told(tmp_path / "tree.tar", jobs=2) == verdict


def test_a_packed_tree_in_a_tar_file(tmp_path: Path) -> None:
    build(tmp_path / "tree", 2000, packed=True)
    with tarfile.open(tmp_path / "tree.tar", "w") as archive:
        archive.add(tmp_path / "tree", arcname="copy/of/it")
    result = audit(open_tree(tmp_path / "tree.tar"))
    assert result.findings == ()
    assert result.summary.messages == 2000


def test_links_in_a_tar_file_lead_nowhere(tmp_path: Path) -> None:
    small_tree(tmp_path / "tree")
    victim = next((tmp_path / "tree").rglob("*.msg"))
    secret = tmp_path / "secret"
    victim.rename(secret)
    victim.symlink_to(secret)
    with tarfile.open(tmp_path / "tree.tar", "w") as archive:
        archive.add(tmp_path / "tree", arcname=".")
    result = audit(open_tree(tmp_path / "tree.tar"))
    assert "unreadable" in codes(result)
    assert victim.name in str([finding.subject for finding in result.findings])


# tar stores a file under two names once: one that was published and is in `tmp` still, for instance.
def test_a_hard_link_in_a_tar_file_is_another_name(tmp_path: Path) -> None:
    small_tree(tmp_path / "tree")
    victim = next((tmp_path / "tree").rglob("*.msg"))
    before = tmp_path / "0"
    before.hardlink_to(victim)
    with tarfile.open(tmp_path / "tree.tar", "w") as archive:
        archive.add(before, arcname="./../0")
        archive.add(tmp_path / "tree", arcname=".")
        assert archive.getmember(f"./{victim.relative_to(tmp_path / 'tree')}").islnk()
    assert audit(open_tree(tmp_path / "tree.tar")).findings == ()


def test_a_hard_link_to_nothing_in_the_tar_file_says_so(tmp_path: Path) -> None:
    small_tree(tmp_path / "tree")
    victim = next((tmp_path / "tree").rglob("*.msg"))
    member = tarfile.TarInfo(f"./{victim.relative_to(tmp_path / 'tree')}")
    member.type, member.linkname = tarfile.LNKTYPE, "./nowhere"
    victim.unlink()
    with tarfile.open(tmp_path / "tree.tar", "w") as archive:
        archive.add(tmp_path / "tree", arcname=".")
        archive.addfile(member)
    result = audit(open_tree(tmp_path / "tree.tar"))
    assert codes(result) == {"unreadable"}
    assert "hard link to what the tar file does not hold" in result.findings[0].explanation


@NO_RUN
def test_a_file_with_holes_in_a_tar_file_is_said_to_be_one(tmp_path: Path) -> None:
    small_tree(tmp_path / "tree")
    os.truncate(tmp_path / "tree" / "policy" / "00000001", 10_000_000)
    subprocess.run(["tar", "-C", tmp_path / "tree", "--sparse", "-cf", tmp_path / "tree.tar", "."], check=True)
    result = audit(open_tree(tmp_path / "tree.tar"))
    assert "unpack the tar file" in str([finding.explanation for finding in result.findings])


class Closed(Tree):
    """A tree with a directory that this user may not look into."""

    closed = ""

    def names(self, directory: str) -> list[tuple[str, bool]]:
        if directory != self.closed:
            return super().names(directory)
        self.unreadable[directory] = "Permission denied"
        return []

    def open_file(self, path: str) -> Opened | None:
        if not path.startswith(f"{self.closed}/"):
            return super().open_file(path)
        self.unreadable[path] = "Permission denied"
        return None


# What is in a directory that cannot be read is not missing: nobody is accused of having taken it away.
@pytest.mark.parametrize("pattern", ["logs/*/*/*/*/lock", "logs/*/*/*/seal", "shards/*/*/00000001"])
def test_what_is_in_an_unreadable_directory_is_not_missing(tmp_path: Path, pattern: str) -> None:
    small_tree(tmp_path)
    tree = Closed(tmp_path)
    tree.closed = next(tmp_path.glob(pattern)).parent.relative_to(tmp_path).as_posix()
    result = audit(tree)
    assert codes(result) == {"unreadable"}
    assert exit_status(result) == 3


def test_an_index_where_nobody_may_write_is_refused_by_name(tmp_path: Path) -> None:
    small_tree(tmp_path / "tree")
    with pytest.raises(TenureError) as refused:
        told(tmp_path / "tree", index_file=tmp_path / "nowhere" / "index.db")
    assert refused.value.code == "index-failed"


def test_members_that_point_out_of_the_tree_are_nothing(tmp_path: Path) -> None:
    small_tree(tmp_path / "tree")
    with tarfile.open(tmp_path / "tree.tar", "w") as archive:
        archive.add(tmp_path / "tree", arcname=".")
        archive.add(tmp_path / "tree" / "TENURE", arcname="../logs/evil")
    assert audit(TarTree(tmp_path / "tree.tar")).findings == ()


@pytest.mark.parametrize("content", [b"", b"x" * 2048])
def test_what_is_no_tar_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(Damaged) as refused:
        open_tree(tmp_path / "file")
    assert refused.value.code == "not-a-tree"


def test_a_part_of_a_tree_without_its_marker(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    (tree.root / "TENURE").unlink()
    shutil.rmtree(tree.root / "policy")
    assert codes(audit(open_tree(tree.root))) == {"unverifiable-policy"}


def test_a_second_run_reads_what_changed_and_nothing_else(planted: Path, verdict: bytes, tmp_path: Path) -> None:
    place, db = tmp_path / "tree", tmp_path / "db"
    shutil.copytree(planted, place)
    read: list[str] = []

    class Watched(Tree):
        def read_range(self, path: str, offset: int, length: int) -> bytes | None:
            read.append(path)
            return super().read_range(path, offset, length)

    def again(*, reread: bool = False) -> bytes:
        read.clear()
        return json_bytes(audit(Watched(place), options=Options(index_file=db, reread=reread)))

    assert again() == verdict
    first = {path for path in read if path.endswith(".log")}
    assert len(first) > 50
    assert again() == verdict
    assert not [path for path in read if path.endswith(".log")]
    # One bit, the same size, and the times put back.
    victim = place / max(path for path in first if "orders" in path)
    data, before = bytearray(victim.read_bytes()), victim.stat()
    data[-50] ^= 1
    victim.write_bytes(data)
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = again()
    assert changed != verdict
    assert changed == told(place)
    assert {path.split("/")[1] for path in read if path.endswith(".log")} == {"orders"}
    data[-50] ^= 1
    victim.write_bytes(data)
    assert again() == verdict
    assert again(reread=True) == verdict
    assert {path for path in read if path.endswith(".log")} == first


# An empty directory is no file, and may be a finding all the same, or a bag that is open.
@pytest.mark.parametrize("name", ["garbage", "22-00-04.000-1000-2000"])
def test_a_second_run_sees_a_directory_that_came(tmp_path: Path, name: str) -> None:
    tree = small_tree(tmp_path / "tree")
    (rack,) = tree.root.glob("logs/*/*/*")
    (rack / "seal").unlink()
    (rack / "prelock").unlink()
    first = told(tree.root, index_file=tmp_path / "db")
    (rack / name).mkdir()
    assert told(tree.root, index_file=tmp_path / "db") == told(tree.root) != first
    (rack / name).rmdir()
    assert told(tree.root, index_file=tmp_path / "db") == first


def test_a_part_that_changed_in_the_index_is_not_believed(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    told(tree.root, index_file=tmp_path / "db")
    with apsw.Connection(str(tmp_path / "db")) as db:
        for unit, part in list(db.execute("SELECT unit, part FROM part WHERE unit LIKE 'logs/%'")):
            changed = part.replace(b"orders", b"border")
            assert changed != part
            db.execute("UPDATE part SET part = ? WHERE unit = ?", (changed, unit))
    with pytest.raises(BadRequest) as refused:
        told(tree.root, index_file=tmp_path / "db")
    assert refused.value.code == "not-an-index"


def a_pipe(path: Path) -> Path:
    os.mkfifo(path / "pipe")
    return path / "pipe"


@pytest.mark.parametrize("place", [a_pipe, lambda _: Path("/dev/full"), lambda _: Path("/dev/null"), lambda path: path])
def test_an_index_in_what_is_no_file_is_refused(place: Callable[[Path], Path], tmp_path: Path) -> None:
    small_tree(tmp_path / "tree")
    with pytest.raises(TenureError) as refused:
        told(tmp_path / "tree", index_file=place(tmp_path))
    assert refused.value.code == "index-failed"
    assert refused.value.exit_status == 74


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupted_run_goes_on(planted: Path, verdict: bytes, tmp_path: Path, jobs: int) -> None:
    seen: list[int] = []

    def interrupt(done: int, total: int, _messages: int, _part: str) -> None:
        seen.append(done)
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(Tree(planted), options=Options(index_file=tmp_path / "db", jobs=jobs), progress=interrupt)
    assert multiprocessing.active_children() == []
    read: list[str] = []

    class Watched(Tree):
        def listing(self, *arguments: object) -> object:  # type: ignore[override]
            read.append(str(arguments[1]))
            return super().listing(*arguments)  # type: ignore[arg-type]

    assert json_bytes(audit(Watched(planted), options=Options(index_file=tmp_path / "db"))) == verdict
    assert seen == [1, 2, 3]
    assert read == []  # both racks were kept, and the ledgers were not


def test_other_records_make_a_second_run_read_everything(tmp_path: Path) -> None:
    tree = eventful_tree(tmp_path / "tree")
    options = Options(index_file=tmp_path / "db")
    clean = json_bytes(audit(Tree(tree.root), options=options))
    (tree.root / "trust" / "00000001").unlink()
    assert json_bytes(audit(Tree(tree.root), options=options)) == told(tree.root) != clean


@pytest.mark.parametrize("content", [b"not a database, and longer than a header of one " * 30, None])
def test_another_file_is_never_taken_for_an_index(tmp_path: Path, content: bytes | None) -> None:
    tree = small_tree(tmp_path / "tree")
    other = tmp_path / "other"
    if content is None:
        import sqlite3

        connection = sqlite3.connect(other)
        connection.execute("CREATE TABLE bag (precious TEXT)")
        connection.commit()
        connection.close()
        content = other.read_bytes()
    else:
        other.write_bytes(content)
    with pytest.raises(BadRequest) as refused:
        told(tree.root, index_file=other)
    assert refused.value.code == "not-an-index"
    assert other.read_bytes() == content


def test_a_damaged_index_says_so(planted: Path, tmp_path: Path) -> None:
    told(planted, index_file=tmp_path / "db")
    data = bytearray((tmp_path / "db").read_bytes())
    data[100:] = bytes(byte ^ 0x55 for byte in data[100:])
    (tmp_path / "db").write_bytes(data)
    with pytest.raises(TenureError) as refused:
        told(planted, index_file=tmp_path / "db")
    assert refused.value.code in ("not-an-index", "index-failed")
    assert refused.value.hint


def test_a_narrow_audit_of_a_clean_tree_finds_nothing(tmp_path: Path) -> None:
    build(tmp_path, 3000, message_bytes=10)
    whole = audit(Tree(tmp_path)).summary.messages
    for narrowing in (
        Narrowing(logs=("orders",)),
        Narrowing(logs=("nothing",)),
        Narrowing(since_ns=2**62),
        Narrowing(domains=("account/a00000", "account/b*")),
    ):
        result = audit(Tree(tmp_path), options=Options(narrowing=narrowing))
        assert result.findings == (), narrowing
        assert result.summary.messages == whole or not narrowing.domains


def test_a_narrow_audit_finds_what_is_left_in_it(planted: Path) -> None:
    result = audit(Tree(planted))
    victims = {finding.subject for finding in result.findings if finding.code == "grant-overlap"}
    (victim,) = {subject.split("'")[1] for subject in victims}
    narrow = audit(Tree(planted), options=Options(narrowing=Narrowing(domains=(victim,))))
    assert {finding.subject for finding in narrow.findings if finding.code == "grant-overlap"} == victims
    other = "account/a*" if victim.startswith("account/b") else "account/b*"
    others = audit(Tree(planted), options=Options(narrowing=Narrowing(domains=(other,))))
    assert "grant-overlap" not in codes(others)


@pytest.mark.parametrize("name", ["alcie", "alice/x*"])
@pytest.mark.parametrize("asked", [(), ("alice",)])
def test_a_domain_of_which_nothing_is_known_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, asked: tuple[str, ...]
) -> None:
    tree = small_tree(tmp_path)
    options = [word for each in (*asked, name) for word in ("--domain", each)]
    assert main(["audit", str(tree.root), *options]) == BadRequest.exit_status
    said = capsys.readouterr()
    assert not said.out
    assert name in said.err
    assert "alice" in said.err.replace(name, "")


def test_domains_that_are_known_are_judged(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    for name in ("alice", "al*", "*"):
        assert main(["audit", str(tree.root), "--domain", name]) == 0


def test_a_domain_in_a_tree_without_leases_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = ClusterTree(tmp_path)
    assert main(["audit", str(tree.root), "--domain", "alice"]) == BadRequest.exit_status
    assert "no lease at all" in capsys.readouterr().err


def test_a_log_that_is_not_there_is_no_clean_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = small_tree(tmp_path)
    assert main(["audit", str(tree.root), "--log", "orders", "--log", "order"]) == BadRequest.exit_status
    shown = capsys.readouterr()
    assert "no-such-log" in shown.err
    assert shown.out == ""


# What is empty by mistake looks like an acquittal.
@pytest.mark.parametrize("until", ["2026-11-20T22:00:00Z", "2026-11-20T21:59:59Z"])
def test_a_range_without_an_instant_is_no_clean_range(
    until: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = small_tree(tmp_path)
    since = ("--since", "2026-11-20T22:00:00Z")
    assert main(["audit", str(tree.root), *since, "--until", until]) == BadRequest.exit_status
    shown = capsys.readouterr()
    assert "empty-range" in shown.err
    assert shown.out == ""
    assert main(["audit", str(tree.root), *since, "--until", "2026-11-20T22:00:01Z"]) == 0


@pytest.mark.parametrize("jobs", ["0", "65", "x", "-3"])
def test_number_of_processes_out_of_range_is_refused_with_the_rule(
    jobs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["audit", ".", "--jobs", jobs])
    assert f"'{jobs}' is not a number of processes from 1 to 64" in capsys.readouterr().err


def test_progress_says_how_fast_and_how_long() -> None:
    text = progress_text(30, 120, 600_000, 10 * SECOND, "logs/x")
    assert text == "of 120 parts [#####...............] 600,000 messages, 60,000/s, 0:30 left, logs/x"
    # Any name that ends so is a part, and it is on a terminal that this is shown.
    assert progress_text(1, 1, 0, 1, "ledger/\x1b[2J.ledger").endswith("left, ledger/\\x1b[2J.ledger")


@pytest.mark.parametrize(
    "arguments", [["--jobs", "0"], ["--since", "yesterday"], ["--jobs", "many"]], ids=lambda each: each[0] + each[1]
)
def test_bad_arguments_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    try:
        code: object = main(["audit", str(tmp_path), *arguments])
    except SystemExit as refused:
        code = refused.code
    assert code == 2
