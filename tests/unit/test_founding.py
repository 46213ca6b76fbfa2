"""Setting up and joining: all of it is done, or nothing is left, on the mount or on the machine."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.admin import membership
from appliance.admin.membership import Listen, enroll, found_cluster, given_away, load_root_key, read_marker, set_up
from appliance.admin.trust import admit, move_node, revoke_node
from appliance.formats.framing import Kind
from appliance.formats.names import Address
from appliance.formats.policy import Policy
from appliance.node.records import Registers
from appliance.node.settings import load_settings
from tests.support.storage import Crash, FailingStorage, Fault, MemoryStorage, WrappedStorage
from tests.support.values import CLUSTER, NOW_NS, ROOT_KEY, WITNESS_KEY
from timeagent.errors import BadConfiguration, BadRequest, Damaged, Environment, NotTrusted, TryAgain
from timeagent.keys import Purpose, Signer, Verifier, key_id, load_private_key, make_node_keys, save_private_key
from timeagent.units import INSTANT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from appliance.bag.ports import Storage
    from appliance.node.settings import Settings

POLICY = Policy(number=1, cluster_id=CLUSTER)


class Rooted(MemoryStorage):
    """A mount whose root can be listed as ``.``, and does not exist if ``missing``."""

    missing = False

    def list_afresh(self, directory: str) -> list[str] | None:
        if directory != ".":
            return super().list_afresh(directory)
        names = {path.split("/")[0] for path in (*self.files, *self.directories) if path}
        return None if self.missing else sorted(names)


@pytest.fixture
def storage() -> Rooted:
    return Rooted()


def init(storage: Storage, tmp_path: Path, node: str = "node1", policy: Policy = POLICY) -> Settings:
    return set_up(storage, tmp_path / "root", node, policy, NOW_NS, tmp_path / "nodes" / node)


def join(
    storage: Storage, tmp_path: Path, node: str = "node2", key: str = "nodes/node1/root.key", place: str = ""
) -> Settings:
    root, marker = tmp_path / "root", read_marker(storage, tmp_path / "root")
    registers = Registers(storage, marker.cluster_id, Verifier(marker.root_key))
    root_key = load_root_key(tmp_path / key, marker.root_key, root)
    return enroll(registers, root, root_key, node, NOW_NS, tmp_path / "nodes" / (place or node))


def local(tmp_path: Path) -> set[str]:
    return {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}


def test_new_cluster_has_a_marker_a_policy_its_founder_and_one_shard(storage: Rooted, tmp_path: Path) -> None:
    settings = init(storage, tmp_path)
    marker = read_marker(storage, tmp_path / "root")
    assert (marker.cluster_id, marker.root_key) == (CLUSTER, settings.root_key)
    registers = Registers(storage, CLUSTER, Signer.verifier(_root_key(settings)))
    assert registers.newest_policy() == POLICY
    assert registers.newest_map().owners == ("node1",)
    keyring = registers.keyring(1)
    assert keyring.node_of(settings.key(Purpose.TIME).id) == "node1"
    assert keyring.refuses(settings.key(Purpose.WITNESS).id, Purpose.WITNESS, NOW_NS) is None
    assert keyring.refuses(settings.key(Purpose.WITNESS).id, Purpose.TIME, NOW_NS) is not None


def _keys() -> dict[Purpose, bytes]:
    return {purpose: Signer(bytes([number] * 32)).public for number, purpose in enumerate(Purpose)}


def _root_key(settings: Settings) -> Signer:
    return Signer.from_pem((settings.directory / "root.key").read_bytes(), "root.key")


@pytest.mark.parametrize("now", [0, INSTANT_MAX])
def test_clock_that_is_far_off_founds_a_cluster_all_the_same(storage: Rooted, tmp_path: Path, now: int) -> None:
    settings = set_up(storage, tmp_path / "root", "node1", POLICY, now, tmp_path / "node1")
    keyring = Registers(storage, CLUSTER, _root_key(settings).verifier()).keyring(1)
    assert keyring.refuses(settings.key(Purpose.TIME).id, Purpose.TIME, min(now, INSTANT_MAX - 1)) is None


def test_nodes_join_with_the_root_key(storage: Rooted, tmp_path: Path) -> None:
    first = init(storage, tmp_path)
    second = join(storage, tmp_path)
    registers = Registers(storage, CLUSTER, _root_key(first).verifier())
    assert registers.newest().trust == 2
    assert registers.keyring(2).node_of(second.key(Purpose.TIME).id) == "node2"
    assert registers.keyring(2).node_of(first.key(Purpose.TIME).id) == "node1"


def test_node_without_shards_leaves_nothing_to_anybody_also_where_nobody_could_have_any(
    storage: Rooted, tmp_path: Path
) -> None:
    registers = Registers(storage, CLUSTER, _root_key(init(storage, tmp_path)).verifier())
    join(storage, tmp_path)
    assert given_away(registers, "node2") == {}
    with pytest.raises(BadRequest, match="no node nobody"):
        given_away(registers, "node2", ["nobody"])
    with pytest.raises(BadRequest, match="no other node answers"):
        given_away(registers, "node1")


# At every call, done or not done: what fails leaves nothing, and can be tried again.
@pytest.mark.parametrize("fault", [Fault.NOT_DONE, Fault.DONE_BUT_FAILED, Fault.CRASH_AFTER])
def test_whichever_call_fails_init_leaves_no_file_and_can_be_repeated(fault: Fault, tmp_path: Path) -> None:
    calls = 0
    while True:
        calls += 1
        storage = Rooted()
        failing = FailingStorage(storage, fault, at=calls)
        try:
            init(failing, tmp_path)
        except (Environment, Crash):
            assert storage.files == {}, calls
        else:
            break
        assert local(tmp_path) == set(), calls
        again = tmp_path / f"again{calls}"
        again.mkdir()
        init(storage, again)
        for name in local(tmp_path):
            (tmp_path / name).unlink()
    assert calls > 15


# Its trust record may be there all the same: then another try has to be the node that the record knows.
@pytest.mark.parametrize("fault", [Fault.NOT_DONE, Fault.DONE_BUT_FAILED])
def test_whichever_call_fails_join_can_be_repeated(fault: Fault, tmp_path: Path) -> None:
    storage = Rooted()
    init(storage, tmp_path)
    founded, calls = dict(storage.files), 0
    while True:
        calls += 1
        storage.files = dict(founded)
        place = f"node{calls + 1}"
        try:
            join(FailingStorage(storage, fault, at=calls), tmp_path, place=place)
        except Environment:
            assert not (tmp_path / "nodes" / place / "node.toml").exists(), calls
            assert fault is Fault.DONE_BUT_FAILED or storage.files == founded, calls
        else:
            break
        settings = join(storage, tmp_path, place=place)
        registers = Registers(storage, CLUSTER, Verifier(settings.root_key))
        known = {entry.public for entry in registers.newest_trust().keys if entry.node == "node2"}
        assert known == {settings.key(purpose).public for purpose in Purpose}, calls
    assert calls > 4


def test_local_failure_leaves_the_mount_untouched(storage: Rooted, tmp_path: Path) -> None:
    (tmp_path / "nodes").touch()
    with pytest.raises(Environment) as refused:
        init(storage, tmp_path)
    assert refused.value.code == "node-dir-unwritable"
    assert storage.files == {}


@pytest.mark.parametrize("name", ["node.toml", "time.key", "witness.key", "root.key"])
def test_directory_where_a_node_lives_is_left_as_it_is(storage: Rooted, tmp_path: Path, name: str) -> None:
    place = tmp_path / "nodes" / "node1"
    place.mkdir(parents=True)
    (place / name).write_bytes(b"precious")
    with pytest.raises(Environment) as refused:
        init(storage, tmp_path)
    assert refused.value.code == "key-exists"
    assert local(tmp_path) == {f"nodes/node1/{name}"}
    assert (place / name).read_bytes() == b"precious"
    assert storage.files == {}


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        (lambda s: s.files.update({"notes.txt": b""}), "root-not-empty"),
        (lambda s: s.files.update({"policy/00000001": b""}) or s.ensure_directory("policy"), "root-not-empty"),
        (lambda s: s.files.update({"TENURE": b""}), "root-exists"),
        (lambda s: setattr(s, "missing", True), "no-root"),
    ],
)
def test_root_that_is_not_empty_is_refused_by_name(
    storage: Rooted, tmp_path: Path, plant: Callable[[Rooted], object], code: str
) -> None:
    plant(storage)
    before = dict(storage.files)
    with pytest.raises(Environment) as refused:
        init(storage, tmp_path)
    assert refused.value.code == code
    assert refused.value.hint
    assert storage.files == before
    assert local(tmp_path) == set()


# Killed, it removes nothing. Its cluster is nobody's: its policy alone was there.
def test_init_that_was_killed_says_what_to_remove(storage: Rooted, tmp_path: Path) -> None:
    storage.files["policy/00000001"] = b""
    storage.ensure_directory("policy")
    with pytest.raises(Environment, match="policy, and no TENURE: an init is at work there, or was cut off") as refused:
        init(storage, tmp_path)
    assert "remove policy there" in refused.value.hint


def test_what_a_file_system_puts_into_its_root_is_no_obstacle(storage: Rooted, tmp_path: Path) -> None:
    storage.ensure_directory("lost+found")
    storage.ensure_directory("policy")
    init(storage, tmp_path)


@pytest.mark.parametrize("kept", [False, True])
def test_of_two_who_set_up_at_once_one_wins_and_the_other_undoes_nothing_of_it(
    storage: Rooted, tmp_path: Path, *, kept: bool
) -> None:
    class Slow(WrappedStorage):
        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            if verb == "publish" and path.startswith("policy"):
                found_cluster(storage, tmp_path / "root", POLICY, ROOT_KEY)
            return call()

    key = tmp_path / "kept.key"
    policy = POLICY
    if kept:  # both sign with one root key
        save_private_key(key, ROOT_KEY)
        policy = msgspec.structs.replace(POLICY, cluster_id=bytes(16))
    before = local(tmp_path)
    with pytest.raises(Environment) as refused:
        set_up(Slow(storage), tmp_path / "root", "node1", policy, NOW_NS, tmp_path / "nodes", root_key_file=key)
    assert refused.value.code == "root-exists"
    assert read_marker(storage, tmp_path / "root").root_key == ROOT_KEY.public
    assert set(storage.files) == {"TENURE", "policy/00000001"}
    assert local(tmp_path) == before


def test_root_key_that_another_made_just_now_is_left_to_it(
    storage: Rooted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "root.key"

    def slowly(directory: Path) -> dict[Purpose, bytes]:
        save_private_key(key, ROOT_KEY)
        return make_node_keys(directory)

    monkeypatch.setattr(membership, "make_node_keys", slowly)
    with pytest.raises(Environment) as refused:
        set_up(storage, tmp_path / "root", "node1", POLICY, NOW_NS, tmp_path / "nodes", root_key_file=key)
    assert refused.value.code == "key-exists"
    assert local(tmp_path) == {"root.key"}
    assert load_private_key(key).public == ROOT_KEY.public
    assert storage.files == {}


# Two calls of one machine, as of two tools that set it up: both have found its directory empty.
def test_keys_that_another_made_just_now_are_left_to_it(
    storage: Rooted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(directory: Path) -> dict[Purpose, bytes]:
        monkeypatch.undo()
        init(storage, tmp_path)
        return make_node_keys(directory)

    monkeypatch.setattr(membership, "make_node_keys", slowly)
    with pytest.raises(Environment) as caught:
        init(Rooted(), tmp_path)
    assert caught.value.code == "key-exists"
    settings = load_settings(tmp_path / "nodes" / "node1")
    assert all(settings.key(purpose) for purpose in Purpose)
    assert load_private_key(settings.directory / "root.key").public == settings.root_key


@pytest.mark.parametrize("node", ["", "Node", "a.b", "-a", "x" * 64])
def test_bad_node_name_is_refused_before_anything_is_made(storage: Rooted, tmp_path: Path, node: str) -> None:
    with pytest.raises(BadRequest):
        init(storage, tmp_path, node)
    assert (storage.files, local(tmp_path)) == ({}, set())


def test_bad_policy_is_refused_before_anything_is_made(storage: Rooted, tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration):
        init(storage, tmp_path, policy=msgspec.structs.replace(POLICY, grace_ns=0))
    assert (storage.files, local(tmp_path)) == ({}, set())


def test_name_that_is_taken_is_refused_and_leaves_no_keys(storage: Rooted, tmp_path: Path) -> None:
    init(storage, tmp_path)
    before = local(tmp_path)
    with pytest.raises(NotTrusted) as refused:
        join(storage, tmp_path, node="node1", place="x")
    assert refused.value.code == "node-exists"
    assert "--node" in refused.value.hint
    assert local(tmp_path) == before


def test_root_key_of_another_cluster_does_not_let_in(storage: Rooted, tmp_path: Path) -> None:
    init(storage, tmp_path)
    save_private_key(tmp_path / "other.key", WITNESS_KEY)
    before, files = local(tmp_path), dict(storage.files)
    with pytest.raises(NotTrusted) as refused:
        join(storage, tmp_path, key="other.key")
    assert refused.value.code == "other-cluster"
    assert (local(tmp_path), storage.files) == (before, files)


def test_missing_root_key_is_named(storage: Rooted, tmp_path: Path) -> None:
    init(storage, tmp_path)
    with pytest.raises(BadConfiguration, match="nowhere"):
        join(storage, tmp_path, key="nowhere")


def test_two_nodes_that_join_at_once_are_both_let_in(storage: Rooted, tmp_path: Path) -> None:
    registers = found_cluster(storage, tmp_path, POLICY, ROOT_KEY)
    enroll(registers, tmp_path, ROOT_KEY, "a", NOW_NS, tmp_path / "a")

    class Slow(WrappedStorage):
        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            if (verb, path) == ("publish", "trust/00000002") and path not in storage.files:
                enroll(registers, tmp_path, ROOT_KEY, "b", NOW_NS, tmp_path / "b")
            return call()

    slow = Registers(Slow(storage), CLUSTER, ROOT_KEY.verifier())
    assert admit(slow, ROOT_KEY, "c", _keys(), NOW_NS) == 3
    assert {entry.node for entry in registers.trust(3).keys} == {"a", "b", "c"}


def test_node_that_two_let_in_at_once_is_let_in_once(storage: Rooted, tmp_path: Path) -> None:
    registers = found_cluster(storage, tmp_path, POLICY, ROOT_KEY)
    publics = make_node_keys(tmp_path / "a")

    class Slow(WrappedStorage):
        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            if verb == "publish" and path not in storage.files:
                assert admit(registers, ROOT_KEY, "a", publics, NOW_NS) == 1
            return call()

    slow = Registers(Slow(storage), CLUSTER, ROOT_KEY.verifier())
    assert admit(slow, ROOT_KEY, "a", publics, NOW_NS) == 1
    assert registers.newest_trust().number == 1


def test_admission_that_never_wins_gives_up(storage: Rooted, tmp_path: Path) -> None:
    registers = found_cluster(storage, tmp_path, POLICY, ROOT_KEY)
    registers.publish = lambda *_: False  # type: ignore[method-assign]
    with pytest.raises(TryAgain):
        admit(registers, ROOT_KEY, "c", _keys(), NOW_NS)


@pytest.mark.parametrize("data", [b"", b"tenure root, format 2\n", b"junk"])
def test_damaged_marker_is_named(storage: Rooted, tmp_path: Path, data: bytes) -> None:
    storage.files["TENURE"] = data
    with pytest.raises(Damaged) as refused:
        read_marker(storage, tmp_path)
    assert str(tmp_path / "TENURE") in refused.value.message


def test_published_records_are_signed_by_the_root_key_alone(storage: Rooted, tmp_path: Path) -> None:
    registers = found_cluster(storage, tmp_path, POLICY, ROOT_KEY)
    with pytest.raises(AssertionError):
        registers.publish(Kind.POLICY, msgspec.structs.replace(POLICY, number=2), WITNESS_KEY)


def test_node_that_listens_says_where_in_the_trust_record_and_moves(storage: Rooted, tmp_path: Path) -> None:
    listen = Listen(Address("0.0.0.0", 7), Address("alpha", 7))
    settings = set_up(storage, tmp_path, "a", POLICY, NOW_NS, tmp_path / "a", listen)
    assert settings.listen == listen.at
    assert load_settings(settings.directory) == settings
    key = _root_key(settings)
    registers = Registers(storage, CLUSTER, key.verifier())

    def addresses(number: int) -> dict[str, str | None]:
        return {str(entry.purpose): entry.address for entry in registers.trust(number).keys}

    assert addresses(1) == {str(each): "alpha:7" if each is Purpose.TLS else None for each in Purpose}
    assert move_node(registers, key, "a", Address("beta", 8)) == 2
    assert addresses(2)["tls"] == "beta:8"
    move_node(registers, key, "a", None)
    assert addresses(3)["tls"] is None
    with pytest.raises(BadRequest, match="no node b"):
        move_node(registers, key, "b", None)


def test_revoked_node_keeps_what_it_signed_before_and_its_earliest_revocation(storage: Rooted, tmp_path: Path) -> None:
    settings = init(storage, tmp_path)
    join(storage, tmp_path)
    key = _root_key(settings)
    registers = Registers(storage, CLUSTER, key.verifier())
    assert revoke_node(registers, key, "node2", NOW_NS) == 3
    ring = registers.keyring(3)
    for purpose in Purpose:
        mine, theirs = (next(e for e in ring.entries(purpose) if e.node == node) for node in ("node1", "node2"))
        assert ring.refuses(key_id(theirs.public), purpose, NOW_NS - 1) is None
        assert "revoked" in str(ring.refuses(key_id(theirs.public), purpose, NOW_NS))
        assert ring.refuses(key_id(mine.public), purpose, NOW_NS) is None
    revoke_node(registers, key, "node2", NOW_NS + 1)
    assert {entry.revoked_from_ns for entry in registers.trust(4).keys} == {None, NOW_NS}
    revoke_node(registers, key, "node2", 0)
    revoke_node(registers, key, "node2", NOW_NS)
    assert {entry.revoked_from_ns for entry in registers.trust(6).keys} == {None, 0}
    with pytest.raises(BadRequest, match="no node node3"):
        revoke_node(registers, key, "node3", NOW_NS)


def test_root_key_is_kept_where_init_is_told_and_one_that_lies_there_is_used(storage: Rooted, tmp_path: Path) -> None:
    place = tmp_path / "safe.key"
    settings = set_up(storage, tmp_path, "a", POLICY, NOW_NS, tmp_path / "a", root_key_file=place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert load_private_key(place).public == settings.root_key
    assert not (settings.directory / "root.key").exists()
    other = set_up(Rooted(), tmp_path, "b", POLICY, NOW_NS, tmp_path / "b", root_key_file=place)
    assert other.root_key == settings.root_key


# What init did not make it does not remove; what it made, it does.
@pytest.mark.parametrize("there", [True, False])
def test_init_that_fails_leaves_the_root_key_as_it_was(storage: Rooted, tmp_path: Path, *, there: bool) -> None:
    place = tmp_path / "safe.key"
    if there:
        save_private_key(place, ROOT_KEY)
    failing = FailingStorage(storage, Fault.NOT_DONE, at=12)
    with pytest.raises(Environment):
        set_up(failing, tmp_path, "a", POLICY, NOW_NS, tmp_path / "a", root_key_file=place)
    assert place.exists() is there
    assert not (tmp_path / "a").exists()
