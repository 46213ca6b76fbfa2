"""Planted faults in planned moves: half leases, what counts by itself, and the maps that say which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.framing import Kind
from appliance.formats.lease import Mode
from appliance.formats.shardmap import Layout
from appliance.formats.witness import Half, WitnessKind
from timeagent.units import MS, SECOND

from . import sessions
from .moving import Move, end_chain, goes_alone
from .plants import plants

if TYPE_CHECKING:
    from pathlib import Path

    from .shard import Shard
    from .tree import Change, ClusterTree


def in_both(root: Path, *owners: str) -> Move:
    """A move that has come to phase *both*."""
    move = Move(root, owners=owners or ("n2",))
    move.both()
    return move


# Half a lease.


@plants("half-lease-write")
def written_under_the_half_that_leaves(root: Path) -> ClusterTree:
    move = in_both(root)
    leaving, _ = move.take("alice", move.writer)
    move.writer.publish(move.grid, leaving)
    return move.done()


@plants("half-lease-write")
def written_under_the_half_that_comes(root: Path) -> ClusterTree:
    move = in_both(root)
    _, coming = move.take("alice", move.writer)
    move.writer.publish(move.grid, coming)
    return move.done()


@plants("half-lease-write")
def written_under_halves_of_two_domains(root: Path) -> ClusterTree:
    move = in_both(root)
    leaving, _ = move.take("alice", move.writer)
    _, coming = move.take("bob", move.writer)
    move.writer.publish(move.grid, leaving, coming)
    return move.done()


@plants("half-lease-write")
def written_with_one_lease_of_two_whole(root: Path) -> ClusterTree:
    move = in_both(root)
    leaving, coming = move.take("alice", move.writer)
    other, _ = move.take("bob", move.writer)
    move.writer.publish(move.grid, leaving, coming, other)
    return move.done()


@plants("half-lease-write")
def written_after_the_old_shard_renewed_what_it_had_granted_before(root: Path) -> ClusterTree:
    move = Move(root)
    lease = move.old.grant("alice", move.writer)
    move.both()
    move.old.prolong(lease)
    move.writer.publish(move.grid, lease)
    return move.done()


@plants("half-lease-write")
def written_after_the_old_shard_renewed_the_session_lease(root: Path) -> ClusterTree:
    move = Move(root)
    session = sessions.begin(move.old, move.writer)
    lease = sessions.under(session, "alice", move.writer)
    move.both()
    sessions.renew(session)
    move.writer.publish(move.grid, lease)
    return move.done()


@plants("half-lease-write")
def written_under_a_session_lease_of_before_with_a_lease_of_the_phase(root: Path) -> ClusterTree:
    move = Move(root)
    session = sessions.begin(move.old, move.writer)
    move.both()
    lease = sessions.under(session, "alice", move.writer)
    move.writer.publish(move.grid, lease)
    return move.done()


# What counts by itself.


def after_a_crash(move: Move) -> Shard:
    """End the chain of the old shard without its doing; return the new shard, which counts by itself."""
    end = end_chain(move.tree, move.old)
    move.publish(3)
    move.tree.advance(MS)
    goes_alone(move.coming[0], floor_ns=end.floor_ns, settle_to_ns=end.settle_to_ns)
    return move.coming[0]


@plants("overtaken-lease")
def map_that_ends_a_move_while_a_lease_is_held_from_the_old_shard_alone(root: Path) -> ClusterTree:
    move = Move(root)
    move.old.grant("alice", move.writer)
    move.both()
    move.new()
    return move.done()


@plants("whole-too-early")
def half_without_the_other_that_becomes_whole(root: Path) -> ClusterTree:
    move = Move(root)
    lease = move.old.grant("alice", move.writer)
    move.both()
    coming = move.coming[0].grant("alice", move.other)
    move.tree.advance(6 * SECOND)
    move.coming[0].extend()
    move.coming[0].prolong(coming)
    move.tree.until(lease.witness.expiry_ns + SECOND)
    after_a_crash(move).prolong(coming)
    return move.done()


@plants("whole-too-early")
def half_without_the_other_that_becomes_whole_with_its_session_lease(root: Path) -> ClusterTree:
    move = Move(root)
    before = sessions.begin(move.old, move.writer)
    sessions.under(before, "alice", move.writer)
    move.both()
    session = sessions.begin(move.coming[0], move.other)
    sessions.under(session, "alice", move.other)
    move.tree.advance(6 * SECOND)
    move.coming[0].extend()
    sessions.renew(session)
    move.tree.until(before.witness.expiry_ns + SECOND)
    after_a_crash(move)
    sessions.renew(session)
    return move.done()


@plants("whole-too-early")
def half_without_the_other_above_no_watermark(root: Path) -> ClusterTree:
    move = Move(root)
    lease = move.old.grant("alice", move.writer)
    move.both()
    coming = move.coming[0].grant("alice", move.other)
    move.writer.publish(move.grid, lease)
    move.old.end(lease)
    after_a_crash(move).prolong(coming)
    return move.done()


@plants("floor-fell")
def chain_that_counts_below_the_end_of_the_one_before(root: Path) -> ClusterTree:
    move = in_both(root)
    end_chain(move.tree, move.old)
    move.publish(3)
    move.tree.advance(MS)
    goes_alone(move.coming[0], floor_ns=move.old.ceiling_ns - 1, settle_to_ns=move.old.ceiling_ns)
    move.coming[0].grant("alice", move.writer, change={"fence": move.old.ceiling_ns + 1})
    return move.done()


@plants("floor-fell")
def chain_that_counts_without_what_the_one_before_asks_to_be_settled(root: Path) -> ClusterTree:
    move = in_both(root)
    end_chain(move.tree, move.old)
    move.publish(3)
    move.tree.advance(MS)
    goes_alone(move.coming[0], floor_ns=move.old.ceiling_ns, settle_to_ns=move.old.ceiling_ns - 1)
    move.coming[0].grant("alice", move.writer, change={"fence": move.old.ceiling_ns + 1})
    return move.done()


@plants("floor-fell")
def shard_that_leaves_without_having_been_whole_and_forgets_what_it_has_out(root: Path) -> ClusterTree:
    move = in_both(root)
    move.take("alice", move.writer)
    move.publish(3)
    move.publish(4, {"chains": (4,)}, before=Layout(owners=move.owners, chains=(2,)))
    shard = move.coming[0]
    shard.going_by, shard.half = 4, Half.LEAVING
    shard.stop_orderly()
    return move.done()


@plants("r2-breach")
def chain_that_counts_before_the_one_before_has_ended(root: Path) -> ClusterTree:
    move = in_both(root)
    move.publish(3)
    goes_alone(move.coming[0], floor_ns=move.old.ceiling_ns, settle_to_ns=move.old.ceiling_ns)
    move.tree.advance(SECOND)
    end_chain(move.tree, move.old)
    return move.done()


@plants("r2-breach")
def chain_that_counts_beside_one_before_that_goes_on(root: Path) -> ClusterTree:
    move = in_both(root)
    move.publish(3)
    goes_alone(move.coming[0], floor_ns=move.old.ceiling_ns, settle_to_ns=move.old.ceiling_ns)
    move.tree.advance(SECOND)
    move.old.extend()
    return move.done()


@plants("chain-fork")
def chain_that_counts_though_nothing_says_that_the_one_before_has_ended(root: Path) -> ClusterTree:
    move = in_both(root)
    move.publish(3)
    goes_alone(move.coming[0], floor_ns=move.old.ceiling_ns, settle_to_ns=move.old.ceiling_ns)
    return move.done()


@plants("grant-without-right")
def granted_under_a_chain_that_had_ended(root: Path) -> ClusterTree:
    move = in_both(root)
    end_chain(move.tree, move.old)
    move.old.ceiling_number += 1
    move.old.grant("alice", move.other)
    return move.done()


@plants("wrong-shard")
def granted_by_another_of_the_shards_that_come(root: Path) -> ClusterTree:
    move = in_both(root, "n2", "n2")
    other = next(shard for shard in move.coming if shard is not move.of("alice"))
    other.grant("alice", move.writer)
    return move.done()


@plants("fence-not-growing")
def stronger_mode_with_a_fence_below_the_floor_that_its_shard_has_raised(root: Path) -> ClusterTree:
    move = Move(root)
    move.old.end(move.old.grant("bob", move.other))
    move.both()
    lease = move.coming[0].grant("alice", move.writer, mode=Mode.S)
    move.new()
    change: Change = {"mode": Mode.X, "fence": lease.witness.fence + 1}
    move.coming[0].prolong(lease, WitnessKind.UPGRADE, change=change)
    return move.done()


# How much of a lease, and by which map.


def signs(shard: Shard, going_by: int, half: Half) -> None:
    """Have a shard say of its next leases what they are, and grant one."""
    shard.going_by, shard.half = going_by, half
    shard.extend()


@plants("wrong-half")
def old_shard_whose_leases_are_whole_in_both(root: Path) -> ClusterTree:
    move = in_both(root)
    signs(move.old, 2, Half.WHOLE)
    return move.done()


@plants("wrong-half")
def new_shard_whose_leases_are_whole_in_both(root: Path) -> ClusterTree:
    move = in_both(root)
    signs(move.coming[0], 2, Half.WHOLE)
    return move.done()


@plants("wrong-half")
def new_shard_that_says_that_it_leaves(root: Path) -> ClusterTree:
    move = in_both(root)
    signs(move.coming[0], 2, Half.LEAVING)
    return move.done()


@plants("wrong-half")
def shard_that_moves_nowhere_and_says_that_it_leaves(root: Path) -> ClusterTree:
    move = Move(root)
    signs(move.old, 1, Half.LEAVING)
    return move.done()


@plants("wrong-half")
def old_shard_whose_leases_are_whole_by_a_map_without_it(root: Path) -> ClusterTree:
    move = in_both(root)
    move.publish(3)
    signs(move.old, 3, Half.WHOLE)
    return move.done()


@plants("wrong-shard")
def granted_by_a_shard_that_the_map_has_no_more(root: Path) -> ClusterTree:
    move = in_both(root)
    move.publish(3)
    signs(move.old, 3, Half.LEAVING)
    move.old.grant("alice", move.writer)
    return move.done()


@plants("wrong-map")
def shard_that_goes_back_to_the_map_before(root: Path) -> ClusterTree:
    move = in_both(root)
    signs(move.old, 2, Half.LEAVING)
    signs(move.old, 1, Half.WHOLE)
    return move.done()


@plants("wrong-map")
def shard_that_goes_by_a_map_from_before_its_chain(root: Path) -> ClusterTree:
    move = in_both(root)
    signs(move.coming[0], 1, Half.WHOLE)
    return move.done()


@plants("unverifiable-map")
def shard_that_goes_by_a_map_that_is_not_there(root: Path) -> ClusterTree:
    move = Move(root)
    signs(move.old, 2, Half.LEAVING)
    return move.done()


# What maps say of each other.


@plants("map-out-of-step")
def map_with_other_chains_that_is_no_move(root: Path) -> ClusterTree:
    move = Move(root)
    move.publish(2)
    return move.done()


@plants("map-out-of-step")
def move_from_another_layout(root: Path) -> ClusterTree:
    move = Move(root)
    move.publish(2, before=Layout(owners=("n2",), chains=(1,)))
    return move.done()


@plants("map-out-of-step")
def move_that_ends_with_another_layout(root: Path) -> ClusterTree:
    move = Move(root)
    both(move, 2)
    move.publish(3, {"owners": ("n1",)})
    return move.done()


@plants("map-out-of-step")
def move_within_a_move(root: Path) -> ClusterTree:
    move = Move(root)
    both(move, 2)
    layout = Layout(owners=move.owners, chains=(2,))
    move.tree.put_register(Kind.MAP, move.publish(3, {"chains": (3,)}, before=layout))
    return move.done()


@plants("map-out-of-step")
def move_to_a_chain_that_began_under_no_map_of_it(root: Path) -> ClusterTree:
    move = Move(root, owners=("n1", "n2"))
    both(move, 2, chains=(1, 1))
    return move.done()


def both(move: Move, number: int, **change: object) -> None:
    """Publish phase *both* with nobody who goes by it."""
    owners = move.tree.map.owners
    move.publish(number, change, before=Layout(owners=owners, chains=(1,) * len(owners)))
