"""Packed trees, honest and with one breach each. Racks are packed here by the format alone, not by the packer."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from appliance.formats.closed import PACK, PackMaker
from appliance.formats.paths import RETAINED, SEAL
from timeagent.errors import Damaged

from .fixtures import flip, small_tree, two_sealed_racks
from .plants import plants
from .tree import ClusterTree

if TYPE_CHECKING:
    from pathlib import Path


def pack_rack(rack: Path, *, sweep: bool = True) -> bool:
    """Pack one sealed rack; false if it holds nothing, or its files are not what was listed."""
    try:
        maker = PackMaker((rack / SEAL).read_bytes(), "seal")
    except Damaged:
        return False
    parts = [maker.head]
    for each in maker.listed:
        file = rack / each.bag / each.entry.name
        data = file.read_bytes()[: each.entry.size] if file.exists() else b""
        try:
            maker.add(data)
        except Damaged:
            return False
        parts.append(data)
    if maker.listed:
        (rack / PACK).write_bytes(b"".join((*parts, maker.tail())))
    for bag in maker.bags if sweep else ():
        shutil.rmtree(rack / bag)
    return True


def pack_tree(tree: ClusterTree, *, log: str = "*", sweep: bool = True) -> int:
    """Pack every sealed rack that can be, of a log or of all; return how many."""
    return sum(pack_rack(seal.parent, sweep=sweep) for seal in sorted(tree.root.glob(f"logs/{log}/*/*/{SEAL}")))


def packed(root: Path) -> tuple[ClusterTree, Path]:
    """One packed rack with two files; the pack."""
    tree = small_tree(root)
    assert pack_tree(tree, log="orders") == 1
    (pack,) = tree.root.glob(f"logs/orders/*/*/{PACK}")
    return tree, pack


def _flipped(root: Path, offset: int) -> ClusterTree:
    tree, pack = packed(root)
    path = pack.relative_to(tree.root).as_posix()
    flip(tree, path, offset if offset >= 0 else pack.stat().st_size + offset)
    return tree


@plants("damaged-pack")
def damaged_head_of_a_pack(root: Path) -> ClusterTree:
    return _flipped(root, 20)


@plants("damaged-pack")
def damaged_index_of_a_pack(root: Path) -> ClusterTree:
    return _flipped(root, -200)


@plants("damaged-pack")
def damaged_trailer_of_a_pack(root: Path) -> ClusterTree:
    return _flipped(root, -1)


@plants("damaged-pack")
def pack_with_bytes_behind_its_end(root: Path) -> ClusterTree:
    tree, pack = packed(root)
    pack.write_bytes(pack.read_bytes() + b"more")
    return tree


@plants("altered-file")
def damaged_file_in_a_pack(root: Path) -> ClusterTree:
    return _flipped(root, 300)


@plants("misplaced-pack")
def pack_of_another_rack_beside_bags(root: Path) -> ClusterTree:
    tree = small_tree(root)
    grid = tree.grids["orders"]
    tree.settle(grid)
    assert pack_tree(tree, log="orders", sweep=False) >= 1
    racks = sorted(seal.parent for seal in tree.root.glob(f"logs/orders/*/*/{SEAL}"))
    pack = racks[0] / PACK
    maker = PackMaker((racks[1] / SEAL).read_bytes(), "seal")
    pack.write_bytes(maker.head + pack.read_bytes()[len(maker.head) :])
    return tree


@plants("misplaced-pack")
def pack_of_another_rack_in_the_place_of_the_only_one(root: Path) -> ClusterTree:
    tree = pack_of_another_rack_beside_bags(root)
    for lock in sorted(tree.root.glob("logs/orders/*/*/*/lock")):
        shutil.rmtree(lock.parent)
    return tree


@plants("misplaced-pack")
def directory_in_the_place_of_a_pack(root: Path) -> ClusterTree:
    tree, pack = packed(root)
    pack.unlink()
    pack.mkdir()
    return tree


@plants("retained-rack")
def retention_deleted_the_pack(root: Path) -> ClusterTree:
    tree, pack = packed(root)
    pack.with_name(RETAINED).touch()
    pack.unlink()
    return tree


@plants("lost-file")
def pack_is_gone(root: Path) -> ClusterTree:
    tree, pack = packed(root)
    pack.unlink()
    return tree


@plants("lost-file")
def all_bags_of_a_rack_are_gone(root: Path) -> ClusterTree:
    tree = two_sealed_racks(root)
    for lock in sorted(tree.root.glob("logs/orders/*/*/*/lock")):
        shutil.rmtree(lock.parent)
    return tree


@plants("lost-file")
def seal_of_a_pack_is_gone(root: Path) -> ClusterTree:
    tree, pack = packed(root)
    pack.with_name(SEAL).unlink()
    return tree
