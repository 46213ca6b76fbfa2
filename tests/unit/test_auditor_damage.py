"""Bytes changed anywhere: the audit names the file, and never fails on what it finds."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.formats.closed import LockEntry
from appliance.formats.framing import CHECKSUM_BYTES, HEADER_BYTES, Kind, measure, pack, pieces
from appliance.formats.witness import BatchHead
from auditor.audit import audit
from auditor.evidence import tree as load
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tail, Tree, tail_of
from auditor.report.formats import json_bytes, text_lines
from auditor.rules.result import FailOn, exit_status
from tenure.__main__ import main
from tests.fault_injection.fixtures import Story, eventful_tree, flip, small_tree
from tests.fault_injection.shard import Shard
from tests.fault_injection.tree import ClusterTree
from tests.fault_injection.writer import Writer
from tests.support.shares import examples, shares
from timeagent.canonical import decode, encode
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

SIGNATURES = Signatures()
"""Shared: what a signature is worth depends on nothing but the bytes."""


def tree_with_everything(root: Path) -> ClusterTree:
    """Sealed racks, a rack that is not sealed, a late file, a ghost, three runs: nothing that is open or torn."""
    tree = ClusterTree(root)
    grid = tree.log()
    shard, writer = Shard(tree), Writer(tree)
    tree.advance(SECOND)
    lease = shard.grant("alice", writer)
    for _ in range(3):
        tree.advance(700 * MS)
        writer.publish(grid, lease)
    shard.end(lease)
    shard.stop_orderly()
    shard = Shard(tree, "n2")
    tree.settle(grid)
    shard.extend()
    lease = shard.grant("bob", writer)
    tree.advance(20 * MS)
    writer.publish(grid, lease, payloads=[b"x" * 400])
    tree.settle(grid, seal=False)
    late = Writer(tree)
    late.publish(grid, at=grid.first_ns + SECOND + 7)
    late.publish(grid, at=grid.first_ns + 8 * SECOND)
    return tree


def judged(tree: ClusterTree) -> dict[str, list[str]]:
    """Codes by the file that a finding names."""
    result = audit(Tree(tree.root), signatures=SIGNATURES)
    assert exit_status(result, FailOn.ANY) == (1 if result.findings else 0)
    named: dict[str, list[str]] = {}
    for finding in result.findings:
        for place in finding.evidence:
            named.setdefault(place.path, []).append(finding.code)
    return named


def flips(tree: ClusterTree, count: int, chance: random.Random) -> list[tuple[str, int, int]]:
    files = [path for path in tree.files() if not path.endswith("prelock")]
    chosen = []
    for _ in range(count):
        path = chance.choice(files)
        chosen.append((path, chance.randrange(len(tree.get(path))), 1 << chance.randrange(8)))
    return chosen


@pytest.mark.parametrize("share", shares(5))
def test_one_flipped_byte_anywhere_is_noticed_and_its_file_is_named(tmp_path: Path, share: int) -> None:
    tree = tree_with_everything(tmp_path)
    before = judged(tree)
    assert {code for codes in before.values() for code in codes} == {"late-writer", "ghost-bag"}
    for path, offset, bit in flips(tree, 80, random.Random(7 + share)):
        whole = tree.get(path)
        damaged = bytearray(whole)
        damaged[offset] ^= bit
        tree.put(path, bytes(damaged))
        named = judged(tree)
        assert path in named, (path, offset, bit)
        if path not in before:
            assert set(named[path]) - {"late-writer", "ghost-bag"}, (path, offset, bit)
        tree.put(path, whole)
    assert judged(tree) == before


# The last block's length field is where an alteration looks most like an append that was cut short.
def test_no_byte_of_the_last_ledger_block_passes_for_a_torn_one(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    path = next(path for path in tree.files() if path.startswith("ledger/"))
    whole = tree.get(path)
    last = whole.rindex(pack(Kind.LEDGER, b"")[:8])
    for offset in (*range(last, last + HEADER_BYTES), *range(last + HEADER_BYTES, len(whole), 9), len(whole) - 1):
        for bit in (0x01, 0x80) if offset < last + HEADER_BYTES else (0x10,):
            damaged = bytearray(whole)
            damaged[offset] ^= bit
            tree.put(path, bytes(damaged))
            assert "damaged-ledger" in judged(tree)[path], offset


def test_torn_and_altered_tails_are_told_apart() -> None:
    block = pack(Kind.LEDGER, b"a batch of entries " * 9)
    assert {tail_of(block[:length]) for length in range(1, len(block))} == {Tail.TORN}
    assert tail_of(bytes(40)) is Tail.UNCLEAR
    assert tail_of(b"TNUX" + block[4:30]) is Tail.ALTERED
    longer = block[:8] + (len(block) + 5).to_bytes(4, "big") + block[12:]
    assert tail_of(longer) is Tail.ALTERED
    assert tail_of(longer + block) is Tail.ALTERED
    assert tail_of(longer + block[:20]) is Tail.ALTERED


# A request of an append that never arrived leaves zeros over whole pages of the file, from where the append began.
@pytest.mark.parametrize("at", [0, 1, 4090, 8000])
def test_zeros_over_whole_pages_are_a_hole_and_fewer_are_altered(at: int) -> None:
    block = pack(Kind.LEDGER, b"a batch of entries " * 1000)
    first = -at % 4096
    holes = [(start, start + 4096) for start in range(first, len(block) - 4096, 4096)]
    for start, end in (*holes, *([(0, first)] if first else [])):
        holed = block[:start] + bytes(end - start) + block[end:]
        assert tail_of(holed + block, at) is Tail.UNCLEAR, (start, end)
        assert tail_of(holed[:-1], at) is Tail.UNCLEAR, (start, end)
        assert tail_of(holed[: end - 1] + b"x" + holed[end:] + block, at) is Tail.ALTERED, (start, end)
    small = pack(Kind.LEDGER, b"another batch")
    altered = small[:-1] + bytes([small[-1] ^ 1])
    assert tail_of(altered + bytes(2 * 4096) + block, at) is Tail.ALTERED, "it is whole before the hole"


def test_tail_of_many_headers_is_altered_and_not_searched_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def tried_in_vain(data: bytes) -> bool:
        tried.append(len(data))
        return False

    monkeypatch.setattr(load, "_whole_but_for_length", tried_in_vain)
    head = pack(Kind.LEDGER, b"")[:8]
    assert tail_of(head + (60 << 20).to_bytes(4, "big") + head[:4] * 100_000) is Tail.ALTERED
    assert len(tried) <= load.TAIL_ENDS_MAX


# Sparse, so that it costs nothing to make: to read it whole would. Of a seal so much is read as one may have.
@pytest.mark.parametrize("pattern", ["*/*.msg", "*/lock", pytest.param("seal", marks=pytest.mark.verify)])
def test_file_of_a_terabyte_is_not_read_whole(pattern: str, tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    path = min(tree.root.glob(f"logs/*/*/*/{pattern}"))
    os.truncate(path, 1 << 40)
    result = audit(Tree(tree.root))
    assert path.relative_to(tree.root).as_posix() in {finding.subject for finding in result.findings}


@pytest.mark.verify
def test_file_of_a_terabyte_is_explained_and_bundled_in_little_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = small_tree(tmp_path / "tree")
    path = min(tree.root.glob("logs/*/*/*/*/*.msg"))
    os.truncate(path, 1 << 40)
    (finding,) = audit(Tree(tree.root)).findings
    assert finding.code == "late-writer"
    for form in ((), ("--chain",), ("--json",)):
        assert main(["explain", finding.id, str(tree.root), *form]) == 0
    assert path.name in capsys.readouterr().out
    assert main(["bundle", finding.id, str(tree.root), "--output", str(tmp_path / "x.tar")]) == 3
    assert (tmp_path / "x.tar").stat().st_size < 1 << 20


# Whoever closes a bag may list any size, and a file with holes has it.
@pytest.mark.parametrize("packed", [False, True])
def test_file_that_is_listed_with_a_terabyte_is_unreadable(tmp_path: Path, *, packed: bool) -> None:
    story = Story(tmp_path / "tree")
    _, path = story.written()
    story.tree.advance(4 * SECOND)
    bag = story.grid.bag(story.tree.now_ns - 4 * SECOND)
    name = path.rpartition("/")[2]
    story.tree.close(bag, change={"entries": (LockEntry(name=name, size=1 << 40, digest=bytes(32)),)})
    os.truncate(story.tree.root / path, 1 << 40)
    tree = story.done(seal=packed)
    if packed:
        path = f"{bag.rack.path}/pack"
        tree.put(path, b"")
        os.truncate(tree.root / path, 1 << 41)
    result = audit(Tree(tree.root), signatures=SIGNATURES)
    assert ("unreadable", path) in {(each.code, each.subject) for each in result.findings}
    assert "altered-file" not in {each.code for each in result.findings}


# A list's digest covers no checksum by itself: that every piece is whole, up to the listed size, is asked beside it.
@pytest.mark.usefixtures("each_core")
@pytest.mark.parametrize("more", [b"x", b"x" * 200])
def test_listed_bytes_are_whole_pieces_to_the_last(tmp_path: Path, more: bytes) -> None:
    story = Story(tmp_path / "tree")
    _, path = story.written()
    story.tree.advance(4 * SECOND)
    data = story.tree.get(path)
    entry = LockEntry(name=path.rpartition("/")[2], size=len(data + more), digest=measure(data)[2])
    story.tree.put(path, data + more)
    story.tree.close(story.grid.bag(story.tree.now_ns - 4 * SECOND), change={"entries": (entry,)})
    assert "altered-file" in judged(story.tree)[path]
    story.tree.put(path, data)
    story.tree.close(story.grid.bag(story.tree.now_ns - 4 * SECOND))
    assert path not in judged(story.tree)
    for at in range(len(data) - CHECKSUM_BYTES, len(data)):
        flip(story.tree, path, at)
        assert set(judged(story.tree)[path]) == {"altered-file"}, at
        flip(story.tree, path, at)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> ClusterTree:
    return eventful_tree(tmp_path_factory.mktemp("pristine"))


@settings(examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_of_any_kind_ends_in_a_report(pristine: ClusterTree, tmp_path: Path, data: st.DataObject) -> None:
    root = tmp_path / "copy"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(pristine.root, root)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    for _ in range(data.draw(st.integers(1, 6))):
        path = files[data.draw(st.integers(0, len(files) - 1))]
        if not path.is_file():
            continue
        content = path.read_bytes()
        match data.draw(st.sampled_from(["bytes", "cut", "grow", "remove", "directory", "swap"])):
            case "bytes":
                start = data.draw(st.integers(0, len(content)))
                fill = data.draw(st.binary(max_size=40))
                path.write_bytes(content[:start] + fill + content[start + len(fill) :])
            case "cut":
                path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
            case "grow":
                path.write_bytes(content + data.draw(st.binary(max_size=60)))
            case "remove":
                path.unlink()
            case "directory":
                path.unlink()
                path.mkdir()
            case _:
                path.write_bytes(files[0].read_bytes() if files[0].is_file() else b"")
    result = audit(Tree(root), signatures=SIGNATURES)
    assert list(text_lines(result))
    assert json_bytes(result) == json_bytes(audit(Tree(root), signatures=SIGNATURES))
    assert exit_status(result) in {0, 1, 3}


# Re-packed with a good checksum, damage gets past the framing and into the decoders.
@pytest.mark.verify
@settings(examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_behind_a_good_checksum_ends_in_a_report(
    pristine: ClusterTree, tmp_path: Path, data: st.DataObject
) -> None:
    root = tmp_path / "copy"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(pristine.root, root)
    files = sorted(path for path in root.rglob("*") if path.is_file() and pieces(path.read_bytes())[0])
    path = files[data.draw(st.integers(0, len(files) - 1))]
    content = path.read_bytes()
    whole = pieces(content)[0]
    piece = whole[data.draw(st.integers(0, len(whole) - 1))]
    payload = bytearray(content[piece.offset + HEADER_BYTES : piece.end - CHECKSUM_BYTES])
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: piece.offset] + pack(piece.kind, bytes(payload)) + content[piece.end :])
    result = audit(Tree(root), signatures=SIGNATURES)
    assert list(text_lines(result))


@pytest.mark.usefixtures("each_core")
def test_forged_witness_before_good_ones_ends_in_a_report(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease = story.lease()
    head = decode(BatchHead, lease.signed.head)
    forged = msgspec.structs.replace(lease.signed, head=encode(msgspec.structs.replace(head, previous=bytes(32))))
    story.tree.advance(50 * MS)
    path = story.writer.publish(story.grid, lease, change={"witnesses": (encode(forged),)})
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    assert "forged-witness" in judged(story.done())[path]


@pytest.mark.parametrize("name", ["new\nline", "\x1b[31mred", "caf\udce9", "x" * 200])
def test_odd_names_end_in_a_report(name: str, tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    for directory in ("logs", "ledger/00000001/0000", "shards/00000001", "logs/orders/2026-11-20/22-00-00"):
        place = tree.root / directory / name
        place.mkdir()
        (place / name).write_bytes(b"x")
    (tree.root / "ledger/00000001/0000" / f"{name}.ledger").write_bytes(b"x")
    result = audit(Tree(tree.root))
    text = "\n".join(text_lines(result))
    assert text.encode()
    assert "\x1b" not in text
    assert json_bytes(result)


def test_a_pipe_in_the_place_of_a_file_does_not_stop_the_audit(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    path = next(path for path in tree.files() if path.endswith(".msg"))
    tree.remove(path)
    os.mkfifo(tree.root / path)
    result = audit(Tree(tree.root))
    assert [(finding.code, finding.subject) for finding in result.findings] == [("unreadable", path)]
    assert exit_status(result) == 3


# The appliance goes on as if it was not there: nothing says that 99,999,998 records are missing.
@pytest.mark.parametrize("register", ["policy", "trust", "map"])
def test_junk_behind_a_gap_is_damage_and_no_hole(tmp_path: Path, register: str) -> None:
    tree = small_tree(tmp_path / "root")
    tree.put(f"{register}/99999999", b"junk")
    result = audit(Tree(tree.root), root_key=tree.root_key.public)
    assert [(each.code, each.subject) for each in result.findings] == [("damaged-record", f"{register}/99999999")]
