"""A mount on which others wrote what is no record: the live source tells the rest, and nothing ends a screen."""

import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from appliance.cluster import Cluster
from appliance.demo.machines import set_up_place
from appliance.doctor.health import CheckVerdict
from appliance.formats.chains import open_ceiling
from appliance.formats.framing import Kind, pack, pieces
from appliance.formats.shardmap import ShardMap
from appliance.formats.witness import Stopped, open_block
from tests.support.cluster import as_daemon
from tests.support.steps import steps
from tests.tui.test_top_command import PATIENCE_NS, SHARD_0, look, until_written
from timeagent.canonical import encode
from timeagent.clock import SystemClock
from tui.feed import ask_once
from tui.model.overview import health
from tui.model.state import BagSubject, DomainSubject
from tui.sources import mount
from tui.sources.live import LiveSource
from tui.sources.mount import TRIES_MAX, LedgerBook, LedgerLease, MountLocation, _synchronised

MAP = ShardMap(number=1, cluster_id=bytes(16), owners=("node1", "node2"))
LATER = next(name for n in range(100) if MAP.shard_of(name := f"later/{n:02d}") == 0)
NO_TIME = bytes(128)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a root with two leases out, each in a ledger block of its own."""
    directory = tmp_path_factory.mktemp("damaged")
    place = set_up_place(directory / "demo", 2, SystemClock().realtime_ns(), random.Random(str(directory)))
    with Cluster.open(place.mount, node_dir=place.machines[0].directory, allow_root=True) as cluster:
        assert as_daemon(cluster).routes.host.try_host(0, cluster.map)
        with cluster.session("counting") as session, session.acquire(SHARD_0) as leases:
            assert session.publish("bank", [b"1"], under=leases)
            until_written(place.mount, SHARD_0.encode())
            with session.acquire(LATER):
                until_written(place.mount, LATER.encode())
                shutil.copytree(place.mount, directory / "copy")
    place.forget()
    return directory / "copy"


@pytest.fixture
def root(kept: Path, tmp_path: Path) -> Path:
    shutil.copytree(kept, tmp_path / "root")
    return tmp_path / "root"


def spoil_block(root: Path, domain: str) -> None:
    """Let the time in the block that grants a domain be none; its checksum is right."""
    (file,) = (root / "ledger/00000001/0000").glob("*.ledger")
    data = file.read_bytes()
    spoilt = b""
    for piece in pieces(data)[0]:
        raw = data[piece.offset : piece.end]
        if piece.kind is Kind.LEDGER and domain.encode() in raw:
            block = open_block(piece, "")
            head = encode(replace(block.batch_head(""), time=NO_TIME))
            raw = pack(Kind.LEDGER, encode(replace(block, head=head)))
        spoilt += raw
    file.write_bytes(spoilt)


def test_block_that_is_none_hides_no_lease_in_a_later_one(root: Path) -> None:
    assert [row.domain for row in look(root).leases] == sorted([SHARD_0, LATER])
    spoil_block(root, SHARD_0)
    seen = look(root)
    assert [row.domain for row in seen.leases] == [LATER]
    assert seen.shards[0].ledger_bytes is not None
    with closing(LiveSource(MountLocation(root, allow_root=True), SystemClock())) as source:
        ask_once(source, PATIENCE_NS)
        assert any("grant" in line.text for line in source.details(DomainSubject(LATER)))


# A ledger is read from near its end: what stands there may be the middle of a block.
def test_a_ledger_is_read_from_its_first_whole_block_on() -> None:
    block = pack(Kind.LEDGER, b"a turn")
    begun = pack(Kind.LEDGER, b"grants" + pack(Kind.CEILING, b"a copy of a record") + b"more")[14:]
    assert _synchronised(begun + block) == len(begun)
    assert _synchronised(begun) == len(begun)


def test_run_that_says_ever_again_that_it_stopped_is_looked_for_once(root: Path) -> None:
    (file,) = (root / "ledger/00000001/0000").glob("*.ledger")
    book = LedgerBook()
    blocks = [piece for piece in pieces(file.read_bytes())[0] if piece.kind is Kind.LEDGER]
    for piece in blocks:
        book.take(piece, "")
    assert {lease.witness.domain for lease in book.told().leases} >= {SHARD_0, LATER}
    stops = replace(open_block(blocks[-1], ""), entries=(encode(Stopped(floor_ns=0, settle_to_ns=0)),) * 1_000)
    last = pieces(pack(Kind.LEDGER, encode(stops)))[0][0]
    lease = book.told().leases[0]
    for number in range(200):
        witness = replace(lease.witness, domain=f"another/{number}")
        book._grant(LedgerLease(witness, 0, b"another", 0))
    assert steps(lambda: book.take(last, ""), "tui") < 20_000
    assert {each.incarnation for each in book.told().leases} == {b"another"}


# Each of them says that it reaches to the end: whether it does takes a digest of all behind it.
def test_beginnings_of_blocks_without_end_are_not_all_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(pack(Kind.LEDGER, bytes(size))[:12] for size in range(12 * 1_000 - 28, 0, -12))
    tried: list[int] = []

    def tries(_: bytes, offset: int) -> str:
        tried.append(offset)
        return "none"

    monkeypatch.setattr(mount, "piece_at", tries)
    assert _synchronised(data) == len(data)
    assert len(tried) == TRIES_MAX


def test_what_cannot_be_read_is_named_and_not_told_as_absent(root: Path) -> None:
    with closing(LiveSource(MountLocation(root, allow_root=True), SystemClock())) as source:
        (log,) = ask_once(source, PATIENCE_NS).logs
        (bag,) = (each for each in log.bags if each.path)
        (root / bag.path).rename(root / "elsewhere")
        (root / bag.path).symlink_to(root / "elsewhere")
        *_, last = source.details(BagSubject("bank", bag.start_ns))
        assert last.text.startswith(f"  cannot be read: {bag.path}")
        (root / bag.path).unlink()
        assert "cannot be read" not in source.details(BagSubject("bank", bag.start_ns))[-1].text


def test_ceiling_record_whose_time_is_none_leaves_the_rest_to_be_seen(root: Path) -> None:
    newest = max((root / "shards/00000001/0000").iterdir())
    record, signed = open_ceiling(newest.read_bytes(), "")
    body = encode(replace(record, number=record.number + 1, time=NO_TIME))
    newest.with_name(f"{record.number + 1:08d}").write_bytes(pack(Kind.CEILING, encode(replace(signed, body=body))))
    seen = look(root)
    assert seen.shards[0].ceiling_ns == record.ceiling_ns
    assert [row.domain for row in seen.leases] == sorted([SHARD_0, LATER])


def test_record_of_a_shard_that_is_none_hides_nothing_of_the_others(root: Path) -> None:
    chain = root / "shards/00000001/0001"
    chain.mkdir(parents=True, exist_ok=True)
    (chain / "00000001").write_bytes(bytes(200))
    seen = look(root)
    assert [row.domain for row in seen.leases] == sorted([SHARD_0, LATER])
    assert [log.name for log in seen.logs] == ["bank"]
    (wrong,) = (each for each in health(seen) if each.name == "record of shard 1")
    assert (wrong.verdict, wrong.reason[:16]) == (CheckVerdict.FAIL, "ceiling record 1")
