"""The casts with packers, and the mutants that are explored in them."""

from __future__ import annotations

from appliance.bag import closedbags, packer, reader
from tests.simulation.exhaustive import bag_promises as bags
from tests.simulation.exhaustive.bag_casts import BagCast, closer, latest, sealer, settler, writer
from tests.simulation.exhaustive.bag_casts import packer as packing
from tests.simulation.exhaustive.tree import ABSENCES, ANY_FAULT, PIECES
from tests.simulation.mutant import Break

_SEALED = (writer(), sealer())
_PACKED = BagCast((writer(), sealer(), packing()))
_PACKED_TWICE = BagCast((packing(count=2),), before=_SEALED)
_READ = BagCast((packing(), settler()), before=_SEALED)
_READ_TWO = BagCast((packing(), settler()), before=(writer(files=2), sealer()))

PACK_SHORT: dict[str, BagCast] = {
    "writer, sealer, packer": _PACKED,
    "rack sealed, 3 packers": BagCast((packing(count=3),), before=_SEALED),
    "rack sealed, 2 packers, settled reader": BagCast((packing(count=2), settler()), before=_SEALED),
    "rack sealed, packer, attempt retried, late closer": BagCast(
        (packing(), writer(again=1), closer()), before=_SEALED
    ),
}

PACK_LONG: dict[str, BagCast] = {
    "writer, sealer, packer, late closer": BagCast((writer(), closer(), sealer(), packing())),
    "2 writers, sealer, packer": BagCast((writer("a"), writer("b"), sealer(), packing())),
    "writer, sealer, 2 packers": BagCast((writer(), sealer(), packing(count=2))),
    "writer, sealer, packer, in pieces": BagCast((writer(), sealer(), packing()), PIECES),
    "writer, sealer, packer, absences": BagCast((writer(), sealer(), packing()), ABSENCES, decided=False, rack=False),
    "writer, sealer, packer, 1 fault": BagCast((writer(), sealer(), packing()), ANY_FAULT, faults=1),
    "rack sealed, 2 packers, attempt retried": BagCast((packing(count=2), writer(again=1)), before=_SEALED),
    "rack sealed, 2 packers, settled reader, 1 fault": BagCast(
        (packing(count=2), settler()), ANY_FAULT, faults=1, before=_SEALED
    ),
    "rack sealed, packer, settled reader, latest reader": BagCast((packing(), settler(), latest()), before=_SEALED),
}

_SWEPT = "left = [bag.path for bag in bags if not self._remove(bag)]"

PACK_MUTANTS: dict[str, tuple[tuple[Break, ...], BagCast, str]] = {
    "rack swept before its pack is there": (
        ((packer, "Packer.pack", "made = False", "made = False\nself._sweep(PackState.PACKED, bags)"),),
        _PACKED,
        bags.PACKED_FIRST,
    ),
    "rack swept before it is sealed": (
        (
            (
                packer,
                "Packer.pack",
                "return PackReport(PackState.UNSEALED)",
                "return self._sweep(PackState.EMPTY, self._bags_there(rack))",
            ),
        ),
        _PACKED,
        bags.PACKED_FIRST,
    ),
    "prelock of the rack swept with its bags": (
        (
            (
                packer,
                "Packer._sweep",
                _SWEPT,
                f"{_SWEPT}\nfor bag in bags:\n    self._storage.unlink(f'{{bag.rack.path}}/{{PRELOCK}}')",
            ),
        ),
        _PACKED,
        bags.BEGUN,
    ),
    "file that another packer swept taken for lost": (
        ((packer, "Packer._bytes", "raise _Vanished(path)", "raise Damaged('file-missing', path)"),),
        _PACKED_TWICE,
        f"{bags.ALL_DECIDED}: ('raised', 'file-missing')",
    ),
    "rack without directories taken for given up": (
        (
            (
                closedbags,
                "ListedFiles.is_gone",
                "retained(self._storage, rack, seal)",
                "not any(self._storage.look(f'{rack.path}/{each.bag}', (LOCK,)) for each in seal.entries)",
            ),
        ),
        _READ,
        f"{bags.ALL_DECIDED}: ('raised', 'gone')",
    ),
    "what was swept not looked for in the pack": (
        ((closedbags, "ListedFiles._pack", "pack = open_packed(self._storage, rack)", "pack = None"),),
        _PACKED,
        f"{bags.READ_ONCE}: file-missing",
    ),
    "bag read again from the pack, equal frames counted": (
        (
            (closedbags, "ListedFiles.pieces", "lock.entries[number:]", "lock.entries"),
            (
                reader,
                "Reader._accepted",
                "setdefault(part.origin.frame.digest, part)",
                "setdefault(len(found.get(part.origin.rank[:3], ())), part)",
            ),
        ),
        _READ_TWO,
        bags.SETTLED_AGREE,
    ),
}
