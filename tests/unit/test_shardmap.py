import msgspec
import pytest
from msgspec.structs import replace

from appliance.admin.moving import shared
from appliance.formats.shardmap import SHARDS_MAX, ShardMap, chain_of, shard_text
from appliance.formats.witness import Half
from tests.support.values import CLUSTER, shard_map
from timeagent.canonical import decode, encode
from timeagent.errors import Damaged

DOMAINS = [f"accounts/{index}" for index in range(4_000)]


def of(shards: int, number: int = 1) -> ShardMap:
    return ShardMap(number=number, cluster_id=CLUSTER, owners=("node-a",) * shards)


@pytest.mark.parametrize("shards", [1, 2, 7, 16])
def test_new_map_with_one_shard_more_moves_only_what_the_new_shard_takes(shards: int) -> None:
    before, after = of(shards), of(shards + 1, number=2)
    moved = [domain for domain in DOMAINS if before.shard_of(domain) != after.shard_of(domain)]
    assert all(after.shard_of(domain) == shards for domain in moved)
    share = len(DOMAINS) / (shards + 1)
    assert 0.7 * share < len(moved) < 1.3 * share


# Nor may an owner's name matter: a shard that moves to another node keeps its domains.
def test_map_with_other_owners_moves_nothing() -> None:
    other = msgspec.structs.replace(of(5), number=9, owners=("b", "c", "d", "e", "f"))
    assert all(of(5).shard_of(domain) == other.shard_of(domain) for domain in DOMAINS)


def test_domains_spread_over_the_shards() -> None:
    counts = [0] * 8
    for domain in DOMAINS:
        counts[of(8).shard_of(domain)] += 1
    assert min(counts) > 0.7 * len(DOMAINS) / 8


def test_tree_lives_in_one_shard() -> None:
    assert len({of(8).shard_of(f"/tenant/{leaf}") for leaf in range(100)} | {of(8).shard_of("/tenant")}) == 1


# Golden: where a domain lives is part of the format.
def test_shard_of_a_domain_is_fixed() -> None:
    assert [of(8).shard_of(domain) for domain in DOMAINS[:8]] == [4, 2, 4, 5, 6, 7, 0, 5]


def test_map_without_shards_is_neither_made_nor_read() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        of(0)
    raw = encode(shard_map())
    owners = b"\x92\xa6node-a\xa6node-b"
    assert owners in raw
    with pytest.raises(Damaged, match="at least one shard"):
        decode(ShardMap, raw.replace(owners, b"\x90"))


OLD = ShardMap(number=1, cluster_id=CLUSTER, owners=("a", "b"))
BOTH = ShardMap(number=2, cluster_id=CLUSTER, owners=("a", "c"), chains=(1, 2), before=OLD.layout)
NEW = replace(BOTH, number=3, before=None)
MOVED = SHARDS_MAX + 1
"""The shard that comes: in place 1, its chain begun under map 2."""


def test_shard_that_moves_has_a_chain_of_its_own_and_the_others_keep_theirs() -> None:
    assert (OLD.shards, BOTH.shards, NEW.shards) == ((0, 1), (0, MOVED, 1), (0, MOVED))
    assert [each.owner_of(shard) for each in (BOTH, NEW) for shard in (0, 1, MOVED)] == ["a", "b", "c", "a", None, "c"]
    assert [BOTH.half_of(shard) for shard in (0, 1, MOVED)] == [Half.WHOLE, Half.LEAVING, Half.COMING]
    assert [NEW.half_of(shard) for shard in (0, 1, MOVED)] == [Half.WHOLE, None, Half.WHOLE]
    assert chain_of(MOVED) == (2, 1)
    assert shard_text(MOVED) == "1 (chain 2)"


def test_domain_is_held_from_both_its_shards_while_it_moves() -> None:
    stays, moves = (next(name for name in DOMAINS if OLD.shard_of(name) == place) for place in (0, 1))
    assert [each.shards_of(stays) for each in (OLD, BOTH, NEW)] == [(0,)] * 3
    assert [each.shards_of(moves) for each in (OLD, BOTH, NEW)] == [(1,), (1, MOVED), (MOVED,)]


# Who stays serves those too who have missed the move; who leaves or comes only those who know of it.
def test_shard_is_what_it_is_since_a_map() -> None:
    assert [BOTH.since(shard) for shard in (0, 1, MOVED)] == [1, 2, 2]
    assert [NEW.since(shard) for shard in (0, MOVED)] == [1, 3]


@pytest.mark.parametrize("chains", [(1,), (1, 0), (1, 3)], ids=["too few", "of no map", "of a map to come"])
def test_map_whose_chains_make_no_sense_is_not_made(chains: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="chain"):
        replace(BOTH, chains=chains)


@pytest.mark.parametrize(
    ("owners", "after"),
    [
        (("a",), ("a", "b")),
        (("a", "c"), ("a", "c", "b")),
        (("a", "a", "a"), ("a", "a", "b")),
        (("a", "c", "a", "c", "a", "c"), ("a", "c", "a", "c", "b", "b")),
        (("a", "b"), None),
    ],
)
def test_node_without_shards_gets_its_share(owners: tuple[str, ...], after: tuple[str, ...] | None) -> None:
    layout = shared(replace(OLD, owners=owners), "b")
    assert (layout and layout.owners) == after
