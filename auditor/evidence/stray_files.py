"""What counts for nothing: files that are nobody's, and bags that their rack's seal does not name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.formats.framing import Kind
from appliance.formats.lockfile import open_lock
from appliance.formats.paths import BIRTH, LOCK, LOGS, MARKER, TMP, parse_ledger_name, parse_record_name
from auditor.rules import bags as bag_rules
from auditor.rules.bags import foreign_files
from auditor.rules.finding import Evidence
from auditor.rules.records import stamp_findings
from timeagent.errors import Damaged

from .tree import PIECE_BYTES_MAX, foreign_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from auditor.rules.finding import Finding
    from auditor.seals import SealFacts

    from .records import ClusterRecords
    from .signatures import Signatures
    from .tree import BagListing, Tree


def hidden_bag(
    tree: Tree, records: ClusterRecords, signatures: Signatures, listing: BagListing, seal: SealFacts
) -> list[Finding]:
    """hidden-bag, or nothing. A lock file that does not hold proves nothing: the bag does not exist."""
    path = f"{listing.bag.path}/{LOCK}"
    raw = tree.read(path, PIECE_BYTES_MAX + 1) if listing.locked else None
    if raw is None:
        return []
    try:
        lock, stamped = open_lock(raw, path)
    except Damaged:
        return []
    where = Evidence(path, 0, len(raw))
    keyring = records.keyring(lock.trust_number)
    token, wrong = stamp_findings(signatures, keyring, Kind.LOCK, stamped, lock.closer, where)
    if keyring is None or wrong or bag_rules.misplaced_lock(lock, listing.bag, records.cluster_id):
        return []
    sealable = records.sealable_ns(listing.bag.rack)
    return list(bag_rules.hidden_bag(listing.bag, lock, (token, seal.token), sealable, [where, seal.where]))


REGISTERS: Final = ("policy", "trust", "map")


def check_foreign(tree: Tree) -> Iterator[Finding]:
    """foreign-file: yield one finding for each directory that holds such files."""
    yield from _in(tree, "", lambda name: name == MARKER)
    for register in REGISTERS:
        yield from _in(tree, register, lambda name: parse_record_name(name) is not None)
    for top, ours in (("shards", _is_record), ("ledger", _is_ledger)):
        yield from _in(tree, top, _nothing)
        for map_name in _directories(tree, top):
            yield from _in(tree, f"{top}/{map_name}", _nothing)
            for shard in _directories(tree, f"{top}/{map_name}"):
                yield from _in(tree, f"{top}/{map_name}/{shard}", ours)
    yield from _in(tree, LOGS, _nothing)
    for log in _directories(tree, LOGS):
        yield from _in(tree, f"{LOGS}/{log}", lambda name: name == BIRTH)
        for day in _directories(tree, f"{LOGS}/{log}"):
            if day != TMP:
                yield from _in(tree, f"{LOGS}/{log}/{day}", _nothing)


def _directories(tree: Tree, place: str) -> list[str]:
    return [name for name, is_directory in tree.names(place) if is_directory]


def _in(tree: Tree, place: str, ours: Callable[[str], bool]) -> Iterator[Finding]:
    files = [name for name, is_directory in tree.names(place) if not is_directory]
    barred = {path.rpartition("/")[2] for path in tree.barred(place)}
    yield from foreign_files(place, foreign_names(name for name in files if not ours(name) and name not in barred))


def _nothing(_name: str) -> bool:
    return False


def _is_record(name: str) -> bool:
    return parse_record_name(name) is not None


def _is_ledger(name: str) -> bool:
    return parse_ledger_name(name) is not None or name.endswith(".ledger")  # such a file is read, and judged
