"""The rules of the simulated mount, as they were measured on NFSv3 and v4.2; each named by its number there."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest

from appliance.bag.ports import Published, Storage
from tests.simulation.client import ABSENCE_NS_MAX, MountMishaps
from tests.simulation.cluster import T0
from tests.simulation.mount import SimulatedMount
from tests.simulation.scheduler import Machine, Mishaps, Process, Scheduler
from tests.simulation.server import Server
from timeagent.errors import Environment
from timeagent.units import HOUR, MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Scene:
    """A server with two clients, and actors that say what they saw."""

    seed: int = 1
    mishaps: MountMishaps = field(default_factory=MountMishaps)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.seed, start_ns=T0, end_ns=T0 + 10 * HOUR, steps_max=10_000, traced=True)
        self.server = Server(self.scheduler)
        self.server.mkdir("d")
        self.a = SimulatedMount(self.server, "a", self.mishaps)
        self.b = SimulatedMount(self.server, "b", self.mishaps)
        self.saw: list[object] = []
        self.process = Process(Machine("m"), "p")

    def play(self, *bodies: Callable[[], object]) -> list[object]:
        for number, body in enumerate(bodies):
            self.scheduler.spawn(f"actor {number}", self.process, body)
        self.scheduler.run()
        assert self.scheduler.bugs == []
        return self.saw


def test_s1_what_was_published_before_a_read_is_read_whole() -> None:
    scene = Scene()

    def body() -> None:
        scene.a.publish("d/x", b"content", "tmp")
        scene.saw.append(scene.b.read("d/x"))

    assert scene.play(body) == [b"content"]


def test_s3_a_size_is_true_at_once() -> None:
    scene = Scene()

    def body() -> None:
        scene.a.append("d/x", b"one", 0)
        scene.saw.append(scene.b.size_of("d/x"))
        scene.a.append("d/x", b"two", 3)
        scene.saw.append(scene.b.size_of("d/x"))

    assert scene.play(body) == [3, 6]


def test_s6_an_absence_answers_reads_for_up_to_a_minute() -> None:
    ages = []
    for seed in range(200):
        scene = Scene(seed)

        def body(scene: Scene = scene) -> None:
            assert scene.b.read("d/x") is None
            looked_ns = scene.scheduler.now
            scene.a.publish("d/x", b"1", "tmp")
            while scene.b.read("d/x") is None:
                scene.scheduler.sleep(200 * MS)
            ages.append(scene.scheduler.now - looked_ns)

        scene.play(body)
    assert max(ages) > 50 * SECOND
    assert max(ages) < ABSENCE_NS_MAX + SECOND


# The directory had not changed until then: what the client knows of it is good for another minute.
def test_s6_an_absence_is_renewed_by_looking_for_another_name_in_vain_but_not_when_its_own_is_there() -> None:
    hidden, there = [], []
    for seed in range(200):
        scene = Scene(seed)

        def body(scene: Scene = scene) -> None:
            scene.b.read("d/x")
            scene.b.read("d/z")
            scene.a.publish("d/z", b"1", "tmp")
            scene.scheduler.sleep(40 * SECOND)
            scene.b.read("d/y")
            scene.a.publish("d/x", b"1", "tmp")
            made_ns = scene.scheduler.now
            while scene.b.read("d/x") is None:
                scene.scheduler.sleep(200 * MS)
            hidden.append(scene.scheduler.now - made_ns)
            scene.scheduler.sleep(max(0, made_ns + 20 * SECOND - scene.scheduler.now))
            there.append(scene.b.read("d/z"))

        scene.play(body)
    assert max(hidden) > 40 * SECOND
    assert max(hidden) < ABSENCE_NS_MAX + SECOND
    assert set(there) == {b"1"}


def test_s6_an_absent_directory_hides_what_is_made_below_it() -> None:
    hidden = 0
    for seed in range(20):
        scene = Scene(seed)

        def body(scene: Scene = scene) -> None:
            scene.b.look("d/e", ("x",))
            scene.a.ensure_directory("d/e")
            scene.a.publish("d/e/x", b"1", "tmp")
            scene.saw.append(scene.b.look("d/e", ("x",)))

        hidden += scene.play(body) == [None]
    assert hidden > 10


# One process's request is long on its way; another of its machine finds nothing meanwhile; then the first one succeeds.
@pytest.mark.parametrize("verb", ["look", "list_afresh"])
def test_s6_an_absence_is_forgotten_when_any_process_of_the_machine_has_found_the_name(verb: str) -> None:
    both = set()
    for seed in range(300):
        scene = Scene(seed)

        def slow(scene: Scene = scene) -> None:
            found = scene.b.look("d/e", ()) if verb == "look" else scene.b.list_afresh("d/e")
            scene.saw.append(("slow", found is not None, scene.b.look("d/e", ()) is not None))

        def fast(scene: Scene = scene) -> None:
            scene.saw.append(("fast", scene.b.look("d/e", ()) is not None))
            scene.a.ensure_directory("d/e")

        scene.play(slow, fast)
        assert ("slow", True, False) not in scene.saw
        both.update(scene.saw)
    assert {("slow", True, True), ("fast", False)} <= both


@pytest.mark.parametrize("verb", ["look", "list_afresh", "ensure_marker"])
def test_s7_opening_or_listing_the_directory_or_creating_the_name_drops_the_absence(verb: str) -> None:
    scene = Scene()

    def body() -> None:
        scene.b.read("d/x")
        scene.a.publish("d/x", b"1", "tmp")
        if verb == "look":
            scene.b.look("d", ())
        elif verb == "list_afresh":
            scene.b.list_afresh("d")
        else:
            scene.b.ensure_marker("d/x")
        scene.saw.append(scene.b.read("d/x"))

    assert scene.play(body) == [b"1"]


def test_s8_of_many_links_onto_one_name_one_wins_and_both_clients_win_sometimes() -> None:
    winners = set()
    for seed in range(40):
        scene = Scene(seed)

        def body(mount: SimulatedMount, who: bytes, scene: Scene = scene) -> None:
            scene.saw.append((who, mount.publish("d/x", who, "tmp")))

        scene.play(partial(body, scene.a, b"a", scene), partial(body, scene.b, b"b", scene))
        won = [who for who in (b"a", b"b") if (who, Published.WON) in scene.saw]
        file = scene.server.find("d/x")
        assert file is not None
        assert won == [file.data]
        winners.update(won)
    assert winners == {b"a", b"b"}


def test_s8_an_exclusive_creation_is_true_for_everybody() -> None:
    scene = Scene()

    def body() -> None:
        scene.b.read("d/x")
        scene.a.ensure_marker("d/x")
        scene.saw.extend([scene.b.ensure_marker("d/x"), scene.b.publish("d/x", b"late", "tmp")])

    assert scene.play(body) == [True, Published.LOST]


def test_s9_after_opening_a_directory_every_name_whose_creator_had_returned_is_seen() -> None:
    for seed in range(100):
        scene = Scene(seed)

        def maker(scene: Scene = scene) -> None:
            for n in range(5):
                scene.a.publish(f"d/{n}", b"", "tmp")
                scene.saw.append(n)

        def looker(scene: Scene = scene) -> None:
            for _ in range(10):
                known = {f"{n}" for n in scene.saw}
                assert scene.b.look("d", [str(n) for n in range(5)]) >= known  # type: ignore[operator]
                known = {f"{n}" for n in scene.saw}
                assert set(scene.b.list_afresh("d") or ()) >= known

        scene.play(maker, looker)


def test_s10_who_is_cut_off_blocks_and_is_answered_after_the_heal() -> None:
    scene = Scene()
    scene.a.cut_until = T0 + 100 * SECOND

    def body() -> None:
        scene.saw.append(scene.a.publish("d/x", b"1", "tmp"))
        scene.saw.append(scene.scheduler.now >= T0 + 100 * SECOND)

    assert scene.play(body) == [Published.WON, True]


def test_s10_the_request_of_a_process_that_died_may_arrive_later() -> None:
    late = 0
    for seed in range(200):
        scene = Scene(seed)
        scene.scheduler.mishaps = Mishaps(crash=3)
        scene.play(partial(scene.a.publish, "d/x", b"1", "tmp"))
        late += scene.scheduler.crashes > 0 and scene.server.find("d/x") is not None
    assert late > 5


def test_s11_a_link_whose_reply_was_lost_counts_as_won() -> None:
    scene = Scene(mishaps=MountMishaps(lost_reply=1))

    def body() -> None:
        scene.saw.extend(scene.a.publish(f"d/{n}", b"", "tmp") for n in range(20))

    assert scene.play(body) == [Published.WON] * 20
    assert scene.a.repeats > 5


def delegated(scene: Scene) -> None:
    """Let the second client read d/x until it has a delegation of it."""
    scene.server.delegates = True
    file = scene.server.new(b"v1")
    scene.server.directories["d"]["x"] = file
    while file not in scene.server.delegations:
        assert scene.b.read("d/x") == b"v1"


def test_s12_who_is_cut_off_reads_old_bytes_by_its_delegation_or_waits_and_new_ones_after_the_heal() -> None:
    both = set()
    for seed in range(20):
        scene = Scene(seed)

        def body(scene: Scene = scene) -> None:
            delegated(scene)
            healed = scene.b.cut_until = scene.scheduler.now + 100 * SECOND
            scene.a.append("d/x", b"v2", 2)
            both.add((scene.b.read("d/x"), scene.scheduler.now < healed))
            scene.scheduler.sleep(100 * SECOND)
            scene.saw.append(scene.b.read("d/x"))

        assert scene.play(body) == [b"v1v2"]
    assert both == {(b"v1", True), (b"v1v2", False)}


@pytest.mark.parametrize("verb", ["append", "unlink"])
def test_s12_who_changes_a_delegated_file_waits_for_a_holder_that_is_cut_off_until_its_lease_is_over(verb: str) -> None:
    waits = []
    for cut_ns in (0, 5 * SECOND, 100 * SECOND):
        scene = Scene()

        def body(scene: Scene = scene, cut_ns: int = cut_ns) -> None:
            delegated(scene)
            began = scene.scheduler.now
            scene.b.cut_until = began + cut_ns
            scene.a.ensure_marker("d/beside")
            scene.saw.append(scene.scheduler.now - began < SECOND)
            if verb == "append":
                scene.a.append("d/x", b"v2", 2)
            else:
                scene.a.unlink("d/x")
            waits.append((scene.scheduler.now - began) // SECOND)

        assert scene.play(body) == [True]
    assert waits == [0, 5, 13]


def test_s12_who_answers_is_recalled_and_reads_what_is_new() -> None:
    scene = Scene()

    def body() -> None:
        delegated(scene)
        scene.a.append("d/x", b"v2", 2)
        scene.saw.append(scene.b.read("d/x"))

    assert scene.play(body) == [b"v1v2"]


def test_s12_without_delegations_a_reader_that_is_cut_off_waits() -> None:
    scene = Scene()

    def body() -> None:
        scene.a.publish("d/x", b"v1", "tmp")
        scene.b.read("d/x")
        healed = scene.b.cut_until = scene.scheduler.now + 7 * SECOND
        scene.saw.extend([scene.b.read("d/x"), scene.scheduler.now >= healed])

    assert scene.play(body) == [b"v1", True]


@pytest.mark.parametrize(("uid", "lands"), [(1000, True), (1001, False), (0, True)])
def test_s13_what_was_opened_before_a_chmod_lands_for_the_owner_and_for_root(uid: int, *, lands: bool) -> None:
    scene = Scene()
    scene.a.publish("d/x", b"1", "tmp")
    scene.a.uid = uid
    file = scene.a._opened("d/x", 1)
    scene.server.chmod("d/x", writable=False)
    with nullcontext() if lands else pytest.raises(Environment, match="permission denied"):
        scene.a._written("d/x", file, b"2", 1)
    assert file.data == (b"12" if lands else b"1")
    with nullcontext() if uid == 0 else pytest.raises(Environment, match="permission denied"):
        scene.a.append("d/x", b"3", len(file.data))


def test_s13_nothing_is_made_linked_or_removed_in_a_directory_without_permission_but_by_root() -> None:
    scene = Scene()
    scene.b.uid = 0

    def body() -> None:
        scene.a.ensure_marker("d/old")
        scene.server.chmod("d", writable=False)
        changes: list[Callable[[SimulatedMount], object]] = [
            lambda mount: mount.ensure_marker("d/x"),
            lambda mount: mount.publish("d/y", b"", "tmp"),
            lambda mount: mount.ensure_directory("d/e"),
            lambda mount: mount.append("d/z", b"1", 0),
            lambda mount: mount.unlink("d/old"),
        ]
        for change in changes:
            with pytest.raises(Environment, match="permission denied"):
                change(scene.a)
        scene.saw.append(scene.a.ensure_marker("d/old"))
        for change in changes:
            change(scene.b)
        scene.saw.append(scene.a.list_afresh("d"))

    assert scene.play(body) == [True, ["e", "x", "y", "z"]]


# st_mode and access() lie for as long as attributes are cached; an opening does not.
def test_s14_a_chmod_of_another_client_counts_at_the_next_opening_and_no_verb_tells_a_mode() -> None:
    scene = Scene()

    def body() -> None:
        scene.a.append("d/x", b"1", 0)
        scene.server.chmod("d/x", writable=False)
        with pytest.raises(Environment, match="permission denied"):
            scene.a.append("d/x", b"2", 1)
        scene.server.chmod("d/x", writable=True)
        scene.saw.append(scene.a.append("d/x", b"2", 1))

    assert scene.play(body) == [2]
    verbs = [name for name in vars(Storage) if not name.startswith("_")]
    assert not [verb for verb in verbs if "mode" in verb or "access" in verb or "stat" in verb]


@pytest.mark.parametrize("verb", ["read", "ensure_marker", "publish", "append"])
def test_estale_a_directory_that_was_made_again_is_found_by_who_knows_the_old_one(verb: str) -> None:
    for seed in range(20):
        scene = Scene(seed)

        def ask(name: str, scene: Scene = scene) -> object:
            if verb == "read":
                return scene.b.read("d/e/x") == b"1"
            if verb == "ensure_marker":
                return scene.b.ensure_marker(f"d/e/{name}")
            if verb == "publish":
                return scene.b.publish(f"d/e/{name}", b"", "tmp") is Published.WON
            return scene.b.append(f"d/e/{name}", b"1", 0) == 1

        def body(scene: Scene = scene, ask: Callable[[str], object] = ask) -> None:
            scene.b.ensure_directory("d/e")
            scene.b.list_afresh("d/e")
            scene.a.remove_directory("d/e")
            scene.a.ensure_directory("d/e")
            scene.a.publish("d/e/x", b"1", "tmp")
            scene.saw.extend([ask("y"), ask("z")])

        assert scene.play(body) == [True, True]


def test_estale_who_opens_the_directory_anew_finds_the_one_that_is_there() -> None:
    scene = Scene()

    def body() -> None:
        scene.b.ensure_directory("d/e")
        scene.b.list_afresh("d/e")
        scene.a.remove_directory("d/e")
        scene.a.ensure_directory("d/e")
        scene.a.publish("d/e/x", b"1", "tmp")
        scene.saw.extend([scene.b.look("d/e", ("x",)), scene.b.read("d/e/x")])

    assert scene.play(body) == [frozenset({"x"}), b"1"]


def test_s15_the_server_has_a_clock_of_its_own() -> None:
    scene = Scene()
    scene.server.clock_offset_ns = -HOUR

    def body() -> None:
        scene.saw.append(scene.a.server_clock("tmp") - scene.scheduler.now)

    assert scene.play(body) == [-HOUR]


def test_s16_who_dies_while_it_appends_leaves_all_nothing_or_a_torn_piece() -> None:
    sizes = set()
    for seed in range(200):
        scene = Scene(seed)
        scene.scheduler.mishaps = Mishaps(crash=2)
        scene.play(partial(scene.a.append, "d/x", b"123456", 0))
        file = scene.server.find("d/x")
        sizes.add(0 if file is None else len(file.data))
    assert {0, 6} < sizes


def test_s17_a_server_that_is_away_loses_nothing_and_everybody_waits() -> None:
    scene = Scene()

    def body() -> None:
        scene.a.publish("d/x", b"1", "tmp")
        scene.server.away_until = T0 + 50 * SECOND
        scene.saw.append(scene.b.read("d/x"))
        scene.saw.append(scene.scheduler.now >= T0 + 50 * SECOND)

    assert scene.play(body) == [b"1", True]
