import hashlib
import random
from collections.abc import Sequence

import pytest

from appliance.formats.merkle import KnownPaths, joined_paths, root, tree
from tests.support.values import root_and_paths, root_of_path

# The leaves and roots that implementations of RFC 6962 are tested with.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
COUNTS = range(1, 71)


def leaves_of(count: int) -> list[bytes]:
    return [b"leaf %d" % index for index in range(count)]


def split(count: int) -> int:
    """The largest power of two below the count: the RFC's k."""
    return 1 << (count - 1).bit_length() - 1


def reference_root(leaves: Sequence[bytes]) -> bytes:
    """The RFC's definition, word by word."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    k = split(len(leaves))
    return hashlib.sha256(b"\1" + reference_root(leaves[:k]) + reference_root(leaves[k:])).digest()


def reference_path(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    if index < k:
        return [*reference_path(index, leaves[:k]), reference_root(leaves[k:])]
    return [*reference_path(index - k, leaves[k:]), reference_root(leaves[:k])]


def shape(index: int, count: int) -> list[bool]:
    """On which side each sibling of a path stands."""
    if count == 1:
        return []
    k = split(count)
    return [*shape(index, k), True] if index < k else [*shape(index - k, count - k), False]


@pytest.mark.parametrize("count", range(1, 9))
def test_roots_are_those_of_the_known_vectors(count: int) -> None:
    assert root(LEAVES[:count]).hex() == ROOTS[count - 1]


def test_a_tree_without_leaves_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        root([])


@pytest.mark.parametrize("count", COUNTS)
def test_root_and_paths_are_the_definition_and_lead_to_the_root(count: int) -> None:
    leaves = leaves_of(count)
    top, paths = root_and_paths(leaves)
    assert top == reference_root(leaves)
    for index, path in enumerate(paths):
        assert list(path) == reference_path(index, leaves)
        assert leads(leaves[index], index, count, path, top)


def leads(leaf: bytes, index: int, count: int, path: Sequence[bytes], top: bytes) -> bool:
    return KnownPaths(count, top).holds(leaf, index, path)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 33, 70])
def test_wrong_leaf_index_or_path_does_not_lead_to_the_root(count: int) -> None:
    leaves = leaves_of(count)
    top, paths = root_and_paths(leaves)
    for index, path in enumerate(paths):
        assert not leads(b"another", index, count, path, top)
        for other in range(-1, count + 2):
            assert other == index or not leads(leaves[index], other, count, path, top)
        assert not leads(leaves[index], index, count, [*path, top], top)
        for at in range(len(path)):
            assert not leads(leaves[index], index, count, [*path[:at], *path[at + 1 :]], top)
            broken = [*path[:at], bytes(32), *path[at + 1 :]]
            assert not leads(leaves[index], index, count, broken, top)


# A wrong count is noticed whenever it would make another path: the count itself has to be signed with the root.
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 8, 20])
def test_wrong_count_is_noticed_unless_the_path_has_the_same_shape(count: int) -> None:
    leaves = leaves_of(count)
    top, paths = root_and_paths(leaves)
    for index, path in enumerate(paths):
        for other in range(-1, 40):
            same = 0 <= index < other and shape(index, other) == shape(index, count)
            assert leads(leaves[index], index, other, path, top) is same, (index, other)


# A node is no leaf: without the prefixes an inner node could be presented as an entry.
def test_inner_node_cannot_be_presented_as_a_leaf() -> None:
    left, right = root([b"a"]), root([b"b"])
    top = root([b"a", b"b"])
    assert root([left + right]) != top
    assert not KnownPaths(1, top).holds(left + right, 0, [])


def test_odd_leaf_is_not_repeated() -> None:
    assert root([b"a", b"b", b"c"]) != root([b"a", b"b", b"c", b"c"])


# What one good path has shown must never make another good: whatever came before, the answer is that of root_of_path.
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 13])
@pytest.mark.parametrize("chance", [random.Random(seed) for seed in range(4)])
def test_known_paths_answer_as_if_they_knew_nothing(count: int, chance: random.Random) -> None:
    leaves = leaves_of(count)
    top, paths = root_and_paths(leaves)
    known = KnownPaths(count, top)
    answers = set()
    for _ in range(400):
        index = chance.randrange(count)
        leaf, path = leaves[index], list(paths[index])
        match chance.randrange(8):
            case 0:
                leaf = chance.choice([*leaves, b"another", *paths[index]])
            case 1:
                index = chance.randrange(-1, count + 2)
            case 2 if path:
                path[chance.randrange(len(path))] = chance.choice([bytes(32), top, *path, *chance.choice(paths)])
            case 3 if path:
                del path[chance.randrange(len(path))]
            case 4:
                path.insert(chance.randrange(len(path) + 1), chance.choice([top, *path]))
            case 5:
                path = list(chance.choice(paths))
            case _:
                pass
        expected = root_of_path(leaf, index, count, path) == top
        assert known.holds(leaf, index, path) is expected
        answers.add(expected)
    assert answers == {True, False}


@pytest.mark.parametrize("count", COUNTS)
def test_joined_paths_are_the_paths(count: int) -> None:
    leaves = leaves_of(count)
    _, paths = root_and_paths(leaves)
    assert joined_paths(tree(leaves), b"x") == [b"".join(b"x" + each for each in path) for path in paths]
