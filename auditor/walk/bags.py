"""Logs, racks and bags: reads each file once, applies the rules to it, and tells the index. And what is nobody's."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from typing import Final

from appliance.formats.birth import open_birth, store_of
from appliance.formats.closed import PACK, LockFile, open_lock, open_seal
from appliance.formats.framing import PIECE_BYTES_MAX, Kind, digest_of
from appliance.formats.paths import (
    BIRTH,
    LOCK,
    LOGS,
    MARKER,
    PRELOCK,
    SEAL,
    STORE,
    TMP,
    Bag,
    Grid,
    Rack,
    parse_data_name,
    parse_ledger_name,
    parse_record_name,
)
from appliance.formats.policy import Policy
from appliance.formats.stamped import Stamped
from timeagent.errors import Damaged, TenureError
from timeagent.signedtime import SignedTime
from timeagent.units import INSTANT_MAX, Instant

from ..columns.frames import BagRules, JudgedFile, cut
from ..columns.parts import EvidenceSource, Part
from ..evidence.finding import Evidence, Finding, Verdict
from ..evidence.records import RECORD_BYTES_MAX, REGISTERS, Stranger, birth_path, checked_birth, take_latest
from ..evidence.tree import (
    OF_A_RACK,
    SEAL_FILE_BYTES_MAX,
    BagListing,
    RackListing,
    Tree,
    foreign_names,
)
from ..rules import bags as bag_rules
from ..rules.bags import RackPack, SealFacts, first_unlisted, packed_names, retained_files, wrong_inside
from ..rules.records import Policies, signed_by, stamp_findings
from .facts import Facts
from .listed import FrameJudge


class BagWalk:
    """Audits racks, one after another, each by itself."""

    def __init__(self, reading: EvidenceSource, told: Part, timeline: Facts | None) -> None:
        """Take where evidence comes from. ``told``: takes what is found; ``timeline``: told of what is read, too."""
        self.frames = FrameJudge(reading, told, timeline)
        self._timeline = timeline
        self._reading = reading
        self._tree = reading.tree
        self._records = reading.records
        self._told = told
        self._log: Grid
        """Of the rack that is being walked."""

    def begin(self, log: str) -> Grid | None:
        """Read a log's birth record. None where there is none that holds: then all that the log holds is unread."""
        grid = self._grid(log)
        if grid is None:
            self.blind(log)
        else:
            self._told.add_bag(log, 0, grid.first_ns, closed=True)
        return grid

    def blind(self, log: str) -> None:
        """Say of a log that nobody reads it."""
        if self._lacks_store(log):
            self.barred(log)
        self._unseen(log, 0, INSTANT_MAX, self._files_below(f"{LOGS}/{log}"))

    def barred(self, log: str, start_ns: Instant = 0, end_ns: Instant = INSTANT_MAX) -> None:
        """Say of what may be a directory that nobody can look into it: nothing is missing that may be there."""
        self._unseen(log, start_ns, end_ns, ())
        self._told.unread.append(("", start_ns, end_ns))

    def pass_over(self, rack: Rack) -> None:
        """Say of a rack that nobody reads it: what may be missing from the tree may be there."""
        self._unseen(rack.log, rack.start_ns, rack.end_ns, self._files_below(rack.path))

    def _files_below(self, directory: str) -> Iterator[str]:
        """Yield the paths of all files below a directory, and of those in packs."""
        for path in self._tree.files_below(directory):
            yield path
            yield from self._packed(path) if path.endswith(f"/{PACK}") else ()

    def _packed(self, pack: str) -> Iterator[str]:
        yield from (f"{pack}/{name}" for name in packed_names(self._tree, pack))

    def _unseen(self, log: str, start_ns: Instant, end_ns: Instant, paths: Iterable[str]) -> None:
        """Say of a span of a log that some files of it cannot be read."""
        self._told.add_bag(log, start_ns, end_ns, closed=True, blind=True)
        for path in paths:
            self._unread(path, start_ns, end_ns)

    def rack(self, grid: Grid, listing: RackListing) -> Evidence | None:
        """Audit one rack. Returns where its seal is, if it holds."""
        self._log = grid
        seal = self._rack(listing)
        self.frames.flush()
        if self._timeline:
            self._timeline.finish(grid, listing, seal)
        if seal is None or seal.token is None:
            return None
        self._told.add_bag(listing.rack.log, listing.rack.start_ns, listing.rack.end_ns, closed=True)
        return seal.where

    def _stamp(self, kind: Kind, stamped: Stamped, node: str, where: Evidence) -> SignedTime | None:
        """Check the stamp of a birth or a seal. Returns its signed time if it holds."""
        keys = self._records.keys
        token, findings = stamp_findings(self._reading.signatures, keys, kind, stamped, node, where)
        self._told.refused(findings, keys, stamped.time)
        if token is not None:
            self._check_clock(where.path, token, where)
        return token

    def _check_clock(self, what: str, token: SignedTime, where: Evidence) -> None:
        widest = self._records.widest
        beyond = Policies(widest).check_clock(what, token, where)
        self._told.beyond_policy += [Stranger(finding, signed_by(token, widest)) for finding in beyond]

    def off_grid(self, path: str) -> None:
        self._told.found(
            "off-grid", path, f"{path} is no rack or bag of its log: nothing in it exists", [Evidence(path)]
        )

    def _grid(self, log: str) -> Grid | None:
        path = birth_path(self._tree, log)
        data = self._tree.read(path, RECORD_BYTES_MAX)
        if data is None:
            if path not in self._tree.unreadable:
                reason = f"{LOGS}/{log} has no birth record: its bags are not read"
                self._told.found("unverifiable-log", path, reason, [Evidence(path)])
            return None
        where = Evidence(path, 0, len(data))
        try:
            birth, stamped = checked_birth(data, path, log, self._records.cluster_id)
        except TenureError as problem:
            title = "a log's birth record is damaged or misplaced"
            self._told.found("damaged-record", path, problem.message, [where], title)
            return None
        self._stamp(Kind.BIRTH, stamped, birth.created_by, where)
        if store_of(birth) and not self._store_there(log, data, store_of(birth), where):
            return None
        grid = Grid(birth)
        if self._timeline:
            self._timeline.born(grid, birth, stamped, where)
        return grid

    def _store_there(self, log: str, birth: bytes, named: str, where: Evidence) -> bool:
        """Whether the copy holds what is in the store of a log: its birth record is in there, too. Says so if not."""
        path = f"{LOGS}/{log}/{STORE}"
        there = self._tree.read(path, RECORD_BYTES_MAX)
        if there is None and path not in self._tree.unreadable:
            reason = f"the bags of log {log} are in {named}, which this copy lacks: none of them is judged"
            title = "the bags of a log are in a store that was not copied"
            self._told.found("unverifiable-log", path, reason, [where], title)
        elif there is not None and there != birth:
            reason = f"{path} is not {where.path}: it is of another log of that name, whose bags these are"
            title = "the bags beside a log's birth record are of another log"
            self._told.found("damaged-record", path, reason, [where, Evidence(path, 0, len(there))], title)
        return there == birth

    def _lacks_store(self, log: str) -> bool:
        """Whether a log's bags are in a store of which the copy holds nothing: not even which writers are in there."""
        path = birth_path(self._tree, log)
        birth = self._tree.read(path, RECORD_BYTES_MAX)
        with suppress(Damaged):
            placed = birth is not None and store_of(open_birth(birth, path)[0])
            return bool(placed) and self._tree.read(f"{LOGS}/{log}/{STORE}", RECORD_BYTES_MAX) != birth
        return False

    def _rack(self, listing: RackListing) -> SealFacts | None:
        for path in listing.off_grid:
            self.off_grid(path)
        self._prelock(listing.rack.path, begun=listing.begun, closed="rack is sealed" if listing.sealed else None)
        self._told.report(*bag_rules.foreign_files(listing.rack.path, listing.foreign))
        seal = self._seal(listing) if listing.sealed else None
        barred = [path for path in self._tree.barred(listing.rack.path) if path.rpartition("/")[2] not in OF_A_RACK]
        if barred:
            self.barred(listing.rack.log, listing.rack.start_ns, listing.rack.end_ns)
        if seal is None:
            if listing.pack_directory:
                self.off_grid(f"{listing.rack.path}/{PACK}")
            for each in listing.bags:
                self._bag(each, None, None, swept=False, sweeping=False)
            if listing.packed:  # nobody can say what is in it
                self._told.report(*(() if listing.sealed else bag_rules.pack_without_seal(listing.rack)))
                packed = self._packed(f"{listing.rack.path}/{PACK}")
                self._unseen(listing.rack.log, listing.rack.start_ns, listing.rack.end_ns, packed)
            return None
        start = first_unlisted(self._log, listing.rack, seal.locks)
        if start is not None:  # nobody wrote to it, and it was closed by the seal, if it was not before
            closed_ns = seal.token.interval.earliest if seal.token else 0
            self._told.add_bag(listing.rack.log, start, listing.rack.end_ns, closed=True, closed_ns=closed_ns)
        pack = self._pack(listing, seal) if listing.packed or listing.pack_directory else None
        misplaced = pack is None and (listing.packed or listing.pack_directory)
        gone = None if pack or misplaced or barred else retained_files(self._tree, listing, seal.locks)
        there = {each.bag.name: each for each in listing.bags}
        for each in listing.bags:
            if gone is not None or each.bag.name not in seal.locks:
                known = each.bag.name in seal.locks
                hidden = [] if known else self._hidden(each, seal)
                void = bag_rules.ghost_bag(each.bag.path, self._data_places(each), seal.where)
                self._told.report(*(hidden or void))
        if gone is not None:
            self._retained(listing, seal, gone)
            return seal
        swept = pack is None and not seal.record.lists_files()
        for name, raw in seal.locks.items():
            bag = self._log.parse_bag(listing.rack, name)
            if name in there:
                self._bag(there[name], seal, pack, swept=swept and not there[name].locked, sweeping=swept)
            elif bag is None or (pack is None and not swept):
                self._missing_bag(listing, name, raw, None if misplaced else seal)
            else:
                self._bag(BagListing(bag, (), locked=False, begun=False), seal, pack, swept=swept, sweeping=False)
        self._told.report(*(pack.findings(seal.where) if pack else ()))
        return seal

    def _hidden(self, listing: BagListing, seal: SealFacts) -> list[Finding]:
        """hidden-bag, or nothing. A lock file that does not hold proves nothing: the bag does not exist."""
        path = f"{listing.bag.path}/{LOCK}"
        raw = self._tree.read(path, PIECE_BYTES_MAX + 1) if listing.locked else None
        if raw is None:
            return []
        try:
            lock, stamped = bag_rules.lock_of(raw, path, listing.bag, self._records.cluster_id)
        except Damaged:
            return []
        where = Evidence(path, 0, len(raw))
        keyring = self._records.keyring(lock.trust_number)
        token, wrong = stamp_findings(self._reading.signatures, keyring, Kind.LOCK, stamped, lock.closer, where)
        if keyring is None or wrong:
            return []
        sealable = self._records.sealable_ns(listing.bag.rack, lock.policy_number)
        return list(bag_rules.hidden_bag(listing.bag, lock, (token, seal.token), sealable, [where, seal.where]))

    def _pack(self, listing: RackListing, seal: SealFacts) -> RackPack | None:
        pack = RackPack(self._tree, listing, seal.raw, hashed=self._reading.hashed)
        wrong = f"{pack.path} is a directory" if listing.pack_directory else pack.misplaced()
        if wrong is None:
            return None if self._tree.hides(pack.path) else pack
        there = {each.bag.name for each in listing.bags}
        missing = len(seal.locks.keys() - there)
        if missing:
            wrong += f"; {missing} of the {len(seal.locks)} bags that the rack was sealed with have no directory"
        self._told.found("misplaced-pack", pack.path, wrong, [Evidence(pack.path), seal.where])
        return None

    def _retained(self, listing: RackListing, seal: SealFacts, files: list[str]) -> None:
        """Say what is gone: by retention, which leaves a mark, or by somebody's hand."""
        rack = listing.rack
        self._told.counts.bags += len(seal.locks)
        self._unseen(rack.log, rack.start_ns, rack.end_ns, files)
        reason = bag_rules.gone(rack, len(files), by_retention=listing.retained)
        if listing.retained:
            self._told.found("retained-rack", rack.path, reason, [seal.where])
        else:
            places = [Evidence(path) for path in (f"{rack.path}/{PACK}", *files)]
            title = "what a rack was sealed with is missing"
            self._told.found("lost-file", rack.path, reason, [*places, seal.where], title)

    def _seal(self, listing: RackListing) -> SealFacts | None:
        path = f"{listing.rack.path}/{SEAL}"
        data = self._tree.read(path, SEAL_FILE_BYTES_MAX + 1)
        if data is None:
            return None
        where = Evidence(path, 0, len(data))
        try:
            seal, stamped = open_seal(data, path)
            wrong = bag_rules.misplaced(seal, listing.rack, self._records.cluster_id) or wrong_inside(seal)
        except Damaged as problem:
            wrong = problem.message
        if wrong:
            self._told.found("damaged-seal", path, wrong, [where])
            return None
        token = self._stamp(Kind.SEAL, stamped, seal.sealer, where)
        self._told.saw(token)
        self._told.report(*bag_rules.closing_time("rack", token, listing.rack.end_ns, where, ()))
        return SealFacts(seal, {entry.bag: entry.lock for entry in seal.entries}, where, token, data)

    def _missing_bag(self, listing: RackListing, name: str, raw: bytes, seal: SealFacts | None) -> None:
        """A bag that the seal knows and the copy lacks. ``seal``: None where something else says so already."""
        path = f"{listing.rack.path}/{name}"
        self._told.counts.bags += 1
        lock, _ = open_lock(raw, path)
        held = f"the bag {path}, closed with {len(lock.entries)} files"
        reason = f"the rack was sealed with {held}; it is not there, {bag_rules.NO_PACK}"
        missing = [Evidence(f"{path}/{entry.name}") for entry in lock.entries]
        rack = listing.rack
        self._unseen(rack.log, rack.start_ns, rack.end_ns, (place.path for place in missing))
        if seal is not None and not self._tree.hides(path):
            places = [*(missing or [Evidence(path)]), seal.where]
            self._told.found("lost-file", path, reason, places, title="the directory of a bag is missing")

    def _bag(
        self, listing: BagListing, seal: SealFacts | None, pack: RackPack | None, *, swept: bool, sweeping: bool
    ) -> None:
        """Audit a bag. ``sweeping``: its rack held no files, so directories go without a pack. ``swept``: it went."""
        bag = listing.bag
        self._told.counts.bags += 1
        closed = "bag has a lock file" if listing.locked and pack is None and not sweeping else None
        self._prelock(bag.path, begun=listing.begun, closed=closed)
        self._told.report(*bag_rules.foreign_files(bag.path, listing.foreign))
        if seal is None or (pack is None and not swept):
            raw, where = self._lock_bytes(listing, seal, sweeping=sweeping)
        else:  # its directory may be void
            raw, where = seal.locks[bag.name], seal.where
        if raw is None and not listing.locked:
            self._told.counts.provisional += 1
            self._told.add_bag(bag.log, bag.start_ns, bag.end_ns, closed=False)
            self._open_bag(listing)
            return
        opened = self._lock(bag, raw, where) if raw is not None else None
        if self._timeline and raw is None:
            self._timeline.unread(listing)
        if opened is None:
            self._data_places(listing)  # opens each: what cannot be read is told, with a timeline or without
            self._unseen(bag.log, bag.start_ns, bag.end_ns, (f"{bag.path}/{name}" for name in listing.files))
            return
        lock, token = opened
        self._told.saw(token)
        if self._timeline and raw is not None:
            self._timeline.closed(listing, raw, seal.where if seal else where)
        known = lock.by_name()
        late = self._data_places(listing, known)
        self._told.report(*bag_rules.unlisted_files(late, where, token))
        self._told.report(*bag_rules.closing_time("bag", token, bag.end_ns, where, late))
        if seal is not None:
            self._told.report(*bag_rules.seal_after_lock(token, seal.token, bag, seal.where))

        def policy_of(named: int) -> Policy | None:
            """Return the policy by which a frame of the bag is judged; say so where it is not there."""
            if 1 <= named <= lock.policy_number and self._records.missing(Kind.POLICY, named):
                self._told.report(bag_rules.missing_record(Kind.POLICY, named))
            return self._records.judging(named, lock.policy_number)

        # Of a rack without its seal nobody knows whether the seal lists a bag that was closed when it could be sealed.
        sealable = self._records.sealable_ns(bag.rack, lock.policy_number)
        counts = seal is not None or bool(token and token.interval.latest < sealable)
        keyring, policy = self._records.keyring(lock.trust_number), self._records.policies.get(lock.policy_number)
        by = BagRules(bag, lock, where, token, keyring, policy, policy_of, counts)
        blind = self._listed(listing, by, pack)
        closed_ns = token.interval.earliest if token and counts else 0
        self._told.add_bag(bag.log, bag.start_ns, bag.end_ns, closed=True, blind=blind, closed_ns=closed_ns)

    def _prelock(self, directory: str, *, begun: bool, closed: str | None) -> None:
        path = f"{directory}/{PRELOCK}"
        if begun:
            self._told.report(*bag_rules.filled_prelock(path, self._tree.size(path)))
        elif closed and not self._tree.hides(path):
            self._told.report(*bag_rules.missing_prelock(path, closed))

    def _lock_bytes(
        self, listing: BagListing, seal: SealFacts | None, *, sweeping: bool
    ) -> tuple[bytes | None, Evidence]:
        """Return the bag's lock file by the order of authority: the seal's word, then the file's.

        ``sweeping``: the directory may have been made, and closed, anew after it was swept: then it is void.
        """
        path = f"{listing.bag.path}/{LOCK}"
        data = self._tree.read(path, PIECE_BYTES_MAX + 1) if listing.locked else None
        where = Evidence(path, 0, len(data or b""))
        if seal is None:
            return data, where
        sealed = seal.locks[listing.bag.name]
        if data is None:
            if not self._tree.hides(path):
                reason = f"the rack was sealed with the lock file {path}; it is not there, {bag_rules.NO_PACK}"
                title = "the lock file of a bag is missing"
                self._told.found("lost-file", path, reason, [Evidence(path), seal.where], title)
        elif data != sealed:
            try:
                other, _ = open_lock(data, path)
                wrong = bag_rules.misplaced(other, listing.bag, self._records.cluster_id)
            except Damaged as problem:
                self._told.found("damaged-lock", path, problem.message, [where, seal.where])
            else:
                if sweeping and wrong is None:
                    return sealed, where
                reason = f"{path} is another lock file than the one that the rack was sealed with, which counts"
                # The rack may have been packed and swept since it was listed, and the directory made and closed anew.
                kept = set(open_lock(sealed, path)[0].by_name()).intersection(listing.files)
                verdict = Verdict.INDETERMINATE if wrong is None and not kept else None
                check = bag_rules.same_lock(data, sealed)
                self._told.report(check.finding(path, reason, [where, seal.where], verdict=verdict))
        return sealed, where

    def _lock(self, bag: Bag, raw: bytes, where: Evidence) -> tuple[LockFile, SignedTime | None] | None:
        try:
            lock, stamped = bag_rules.lock_of(raw, where.path, bag, self._records.cluster_id)
        except Damaged as problem:
            self._told.found("damaged-lock", where.path, problem.message, [where])
            return None
        self._told.trust_named.add(lock.trust_number)
        if self._records.missing(Kind.TRUST, lock.trust_number):
            self._told.doubted = True
            self._records.doubt_keys()
        for kind, number in ((Kind.TRUST, lock.trust_number), (Kind.POLICY, lock.policy_number)):
            if self._records.missing(kind, number):
                self._told.report(bag_rules.missing_record(kind, number))
        keyring = self._records.keyring(lock.trust_number)
        token, findings = stamp_findings(self._reading.signatures, keyring, Kind.LOCK, stamped, lock.closer, where)
        self._told.report(*findings)
        if token is not None:
            self._check_clock(f"{bag.path}/{LOCK}", token, where)
            take_latest(self._told.trust_closed, {lock.trust_number: token.interval.earliest})
            take_latest(self._told.policy_closed, {lock.policy_number: token.interval.earliest})
        return lock, token

    def _listed(self, listing: BagListing, by: BagRules, pack: RackPack | None) -> bool:
        """Audit the files that the bag was closed with. Returns whether some of them cannot be read."""
        bag, hashed, blind = by.bag, self._reading.hashed, False
        for entry in by.lock.entries:
            path = f"{bag.path}/{entry.name}"
            data, size, packed_at = None, 0, None
            if pack is not None:
                offset, data = pack.file(bag.name, entry)
                size, packed_at = len(data or b""), (pack.path, offset)
            elif entry.name in listing.files:
                # Beyond the listed size nothing counts: whether a whole frame follows is all that is asked.
                data, size = self._tree.read(path, entry.size + PIECE_BYTES_MAX), self._tree.size(path)
            listed = data if data is None or len(data) == entry.size else data[: entry.size]
            whole = None if listed is None or self._reading.one_by_one else cut(listed, hashed=hashed)
            digest = entry.digest if not hashed else digest_of(whole.digests) if whole else None
            findings = []
            if not self._tree.hides(path) and not (packed_at and self._tree.hides(packed_at[0])):
                at = by.where, by.closed, packed_at
                findings = list(bag_rules.listed_file(entry, path, data, size, *at, digest=digest))
            self._told.report(*findings)
            if listed is None or size < entry.size or any(each.code == "altered-file" for each in findings):
                blind = True
                self._unread(path, bag.start_ns, bag.end_ns)
                continue
            if self._timeline:
                self._timeline.file(bag)
            place, name = Evidence(*(packed_at or (path, 0))), self._log.data_name(entry.name)
            self.frames.file(JudgedFile(by, name, listed, whole, place, path))
        return blind

    def _unread(self, path: str, start_ns: int, end_ns: int) -> None:
        """Remember that its writer's frames of a span of time may be in a file that nobody can read."""
        name = parse_data_name(path.rpartition("/")[2])
        if name is not None:
            self._told.unread.append((name.writer, start_ns, end_ns))

    def _open_bag(self, listing: BagListing) -> None:
        """Read what an open bag holds, as evidence only: nothing in it is judged, and equal frames count once."""
        seen: set[bytes] = set()
        if self._timeline:
            self._timeline.open(listing)
        for name in listing.files:
            path = f"{listing.bag.path}/{name}"
            data = self._tree.read(path, PIECE_BYTES_MAX)
            for frame in self._reading.frames.frames(data, path, self._records.keys)[0] if data is not None else ():
                digest = frame.frame.digest
                if self._timeline:
                    self._timeline.open_frame(frame, listing, path, twice=digest in seen)
                if digest not in seen:
                    seen.add(digest)
                    self.frames.take_open(frame, digest)

    def _data_places(self, listing: BagListing, known: Container[str] = ()) -> list[Evidence]:
        """Return the data files of a bag, but for those that are known."""
        paths = (f"{listing.bag.path}/{name}" for name in sorted(listing.files) if name not in known)
        return [Evidence(path, 0, self._tree.size(path)) for path in paths]


def _is_ledger(name: str) -> bool:
    return parse_ledger_name(name) is not None or name.endswith(".ledger")  # such a file is read, and judged


_nothing: Final = frozenset[str]().__contains__
_OURS: Final[tuple[tuple[str, Callable[[str], object]], ...]] = (
    ("", MARKER.__eq__),
    *((register, parse_record_name) for _, register, _ in REGISTERS),
    *(("shards", _nothing), ("shards/*", _nothing), ("shards/*/*", parse_record_name)),
    *(("ledger", _nothing), ("ledger/*", _nothing), ("ledger/*/*", _is_ledger)),
    *((LOGS, _nothing), (f"{LOGS}/*", {BIRTH, STORE}.__contains__), (f"{LOGS}/*/*", _nothing)),
)
"""Above the racks: which files of a directory are ours, by their names."""


def check_foreign(tree: Tree) -> Iterator[Finding]:
    """foreign-file: yield one finding for each directory above the racks that holds such files."""
    for pattern, ours in _OURS:
        for place in _directories(tree, pattern):
            files = [name for name, is_directory in tree.names(place) if not is_directory and not ours(name)]
            barred = {path.rpartition("/")[2] for path in tree.barred(place)}
            yield from bag_rules.foreign_files(place, foreign_names(name for name in files if name not in barred))


def _directories(tree: Tree, pattern: str) -> list[str]:
    """Return the directories with such a path: a star stands for any name, but that of a log's temporary files."""
    parent, _, last = pattern.rpartition("/")
    if last != "*":
        return [pattern]
    return [
        f"{place}/{name}"
        for place in _directories(tree, parent)
        for name, is_directory in tree.names(place)
        if is_directory and (name != TMP or not place.startswith(f"{LOGS}/"))
    ]
