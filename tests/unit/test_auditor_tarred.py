"""Tar files that were cut, garbled, or made to hurt: refused by name, in bounded time and memory, never half read."""

from __future__ import annotations

import io
import shutil
import tarfile
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from auditor.audit import audit
from auditor.evidence.opening import TarTree, open_tree
from auditor.evidence.tree import LEVELS_MAX, Tree
from tenure.__main__ import main
from tests.fault_injection.fixtures import small_tree
from timeagent.errors import Damaged

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = tarfile.BLOCKSIZE


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("copy")
    small_tree(place / "tree")
    with tarfile.open(place / "tree.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(place / "tree", arcname="tree")
    return (place / "tree.tar").read_bytes()


def members(copy: bytes) -> bytes:
    """The archive without its end."""
    return copy[: (len(copy.rstrip(b"\0")) + BLOCK - 1) // BLOCK * BLOCK]


def binary(number: int) -> bytes:
    return b"\x80" + number.to_bytes(11, "big") if number >= 0 else b"\xff" + (number % (1 << 88)).to_bytes(11, "big")


def header(size: bytes, kind: bytes = tarfile.REGTYPE, name: str = "tree/x") -> bytes:
    member = tarfile.TarInfo(name)
    member.type = kind
    raw = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    raw[124:136] = size.ljust(12, b"\0")
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


def block(data: bytes) -> bytes:
    return data.ljust(BLOCK, b"\0")


ONE = b"%011o" % 1
TWENTY = b"%011o" % 20
NAMES = {
    "a negative size": header(binary(-3 * BLOCK)),
    "a size that goes back far": header(binary(-(1 << 40))),
    "a size beyond every file": header(binary((1 << 87) - 1)),
    "a name of a terabyte": header(binary(1 << 40), tarfile.GNUTYPE_LONGNAME),
    "a name that goes back": header(binary(-BLOCK), tarfile.GNUTYPE_LONGNAME),
    "attributes of a terabyte": header(binary(1 << 40), tarfile.XHDTYPE),
    "names upon names": (header(ONE, tarfile.GNUTYPE_LONGNAME) + block(b"a")) * 3000,
    "a size that an attribute takes back": header(TWENTY, tarfile.XHDTYPE) + block(b"15 size=-51200\n") + header(ONE),
    "no header": b"\x55" * BLOCK,
    "holes that do not end": header(TWENTY, tarfile.GNUTYPE_SPARSE)[:482] + b"\1" + b"\0" * 29,
}


@pytest.mark.parametrize("inserted", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("front", [False, True])
def test_header_that_nobody_writes_is_refused(
    inserted: bytes, copy: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, front: bool
) -> None:
    whole = inserted + members(copy) if front else members(copy) + inserted
    (tmp_path / "copy.tar").write_bytes(whole + bytes(2 * BLOCK))
    assert main(["audit", str(tmp_path / "copy.tar")]) == Damaged.exit_status
    said = capsys.readouterr()
    assert "copy.tar" in said.err
    assert not said.out


# What was cut off is not merely missing: it would look as if nobody had written it.
def test_tar_file_that_was_cut_anywhere_is_refused(copy: bytes, tmp_path: Path) -> None:
    (tmp_path / "copy.tar").write_bytes(copy)
    with tarfile.open(tmp_path / "copy.tar") as archive:
        places = {each.offset + ahead for each in archive for ahead in (0, 100, BLOCK)} | {len(members(copy))}
    for place in sorted(places - {0}):
        (tmp_path / "copy.tar").write_bytes(copy[:place])
        with pytest.raises(Damaged) as refused:
            open_tree(tmp_path / "copy.tar")
        assert refused.value.code == "not-a-tree"
        assert str(tmp_path / "copy.tar") in refused.value.message
    (tmp_path / "copy.tar").write_bytes(members(copy) + bytes(2 * BLOCK))
    assert audit(open_tree(tmp_path / "copy.tar")).findings == ()


def test_path_of_very_many_parts_is_one_directory(copy: bytes, tmp_path: Path) -> None:
    (tmp_path / "copy.tar").write_bytes(copy)
    with tarfile.open(tmp_path / "copy.tar", "a", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("tree/tmp/" + "a/" * 5000 + "b"))
    tree = TarTree(tmp_path / "copy.tar")
    assert len(tree._children) < 2 * LEVELS_MAX + 40
    assert audit(tree).findings == ()


@pytest.mark.parametrize("inside", [".", "copy"])
def test_part_of_a_tree_is_the_same_in_a_tar_file(tmp_path: Path, inside: str) -> None:
    tree = small_tree(tmp_path / "copy")
    tree.remove("TENURE")
    base = tree.root if inside == "." else tmp_path
    name = shutil.make_archive(str(tmp_path / "x"), "tar", base, inside)
    there = audit(open_tree(tmp_path / name))
    assert there.summary == audit(Tree(tree.root)).summary
    assert there.summary.messages == 3


def test_number_of_a_shard_with_thousands_of_digits_is_none(copy: bytes, tmp_path: Path) -> None:
    (tmp_path / "copy.tar").write_bytes(copy)
    with tarfile.open(tmp_path / "copy.tar", "a", format=tarfile.GNU_FORMAT) as archive:
        for top in ("shards", "ledger"):
            archive.addfile(tarfile.TarInfo(f"tree/{top}/00000001/{'9' * 5000}/1"))
    assert {each.code for each in audit(TarTree(tmp_path / "copy.tar")).findings} == {"foreign-file"}


# Whoever keeps the newest copy under one name replaces it while it is judged.
def test_tar_file_that_is_replaced_is_judged_as_it_was(copy: bytes, tmp_path: Path) -> None:
    for name, before in (("copy.tar", b""), ("newer.tar", header(ONE) + block(b"1"))):
        (tmp_path / name).write_bytes(before + copy)
    tree = open_tree(tmp_path / "copy.tar")
    (tmp_path / "newer.tar").replace(tmp_path / "copy.tar")
    assert audit(tree).findings == ()
    (tmp_path / "copy.tar").unlink()
    assert audit(tree).summary.messages == 3


def test_directory_in_it_may_have_a_name_that_begins_with_two_dots(tmp_path: Path) -> None:
    small_tree(tmp_path / "..2026")
    name = shutil.make_archive(str(tmp_path / "x"), "tar", tmp_path, "..2026")
    result = audit(open_tree(tmp_path / name))
    assert (result.findings, result.summary.messages) == ((), 3)


def test_directory_in_it_is_shown_escaped_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_tree(tmp_path / "\x1b[2Jcopy")
    name = shutil.make_archive(str(tmp_path / "x"), "tar", tmp_path, "\x1b[2Jcopy")
    for form in ("text", "json", "jsonl", "sarif", "junit"):
        assert main(["audit", name, "--format", form]) == 0
        out = capsys.readouterr().out
        assert "x1b[2Jcopy" in out
        assert "\x1b" not in out
        assert "\\u001b" not in out


def test_what_a_header_says_of_all_members_is_not_kept_for_each(tmp_path: Path, copy: bytes) -> None:
    said = b"".join(b"15 word%05d=x\n" % number for number in range(5_000))
    of_all = header(b"%011o" % len(said), tarfile.XGLTYPE) + said + bytes(-len(said) % BLOCK)
    each = b"".join(header(b"", name=f"tree/logs/{number}") for number in range(500))
    (tmp_path / "made.tar").write_bytes(of_all + each + copy)
    tracemalloc.start()
    try:
        tree = TarTree(tmp_path / "made.tar")
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert len(tree.names("logs")) > 500


def test_members_that_lead_out_of_the_tar_file_are_no_empty_tree(copy: bytes, tmp_path: Path) -> None:
    file = tmp_path / "out.tar"
    with tarfile.open(fileobj=io.BytesIO(copy)) as old, tarfile.open(file, "w") as new:
        for member in old.getmembers():
            data = old.extractfile(member)
            member.name = f"../{member.name}"
            new.addfile(member, data)
    with pytest.raises(Damaged, match="lead out of it"):
        TarTree(file)
