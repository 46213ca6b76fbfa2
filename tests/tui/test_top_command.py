"""``tenure top --once`` and the live source, on a real small cluster with everything in one process."""

import ast
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from appliance.bag.posix import PosixStorage
from appliance.cluster import Cluster
from appliance.demo.machines import DemoPlace, set_up_place
from appliance.formats.shardmap import ShardMap
from appliance.node.settings import save_settings
from appliance.session.session import Session
from tenure.__main__ import main
from tests.support.cluster import as_daemon
from tests.support.machine import HandMachine
from tests.support.screens import NOW_NS, RecordedSource, busy_state, lease, silent_shard, state, with_shards
from tests.unit.test_import_hygiene import loaded, modules_after
from timeagent.clock import SystemClock
from timeagent.errors import BadRequest, Damaged, Environment, NotTrusted
from timeagent.units import MINUTE, MS, SECOND
from tui.cli import run_top
from tui.feed import AskedQuestion, ask_once
from tui.model.clocks import agreement, agreement_words
from tui.model.overview import json_fields, text_snapshot
from tui.model.state import ClusterState, LeaseOrigin, LeaseRows, Reach
from tui.model.words import Condition, condition
from tui.sources.live import LiveSource, ShardAnswer, process_is_present
from tui.sources.mount import MountLocation, WatchingStorage

PATIENCE_NS = 60 * SECOND


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DemoPlace]:
    made = set_up_place(tmp_path / "demo", 2, SystemClock().realtime_ns(), random.Random(str(tmp_path)))
    yield made
    made.forget()


@pytest.fixture
def session(place: DemoPlace) -> Iterator[Session]:
    """A session on node1, in whose process shard 0 runs; the shard of node2 does not run."""
    first = place.machines[0]
    with Cluster.open(place.mount, node_dir=first.directory, allow_root=True) as cluster:
        assert as_daemon(cluster).routes.host.try_host(0, cluster.map)
        with cluster.session("counting") as opened:
            yield opened


SHARD_0 = next(
    name
    for n in range(100)
    if ShardMap(number=1, cluster_id=bytes(16), owners=("node1", "node2")).shard_of(name := f"account/{n:02d}") == 0
)


@pytest.fixture
def source(place: DemoPlace) -> Iterator[LiveSource]:
    with closing(LiveSource(MountLocation(place.mount, allow_root=True), SystemClock())) as opened:
        yield opened


def until_written(root: Path, words: bytes) -> None:
    """Wait, bounded, until a ledger says something: it is appended off the request path."""
    for _ in range(6_000):
        if any(words in ledger.read_bytes() for ledger in root.rglob("*.ledger")):
            return
        SystemClock().sleep(10 * MS)
    raise AssertionError(f"no ledger ever said {words!r}")


def look(where: Path, **options: object) -> ClusterState:
    source = LiveSource(MountLocation(where, allow_root=True), SystemClock(), **options)  # type: ignore[arg-type]
    with closing(source):
        return ask_once(source, PATIENCE_NS)


# -- the live source ---------------------------------------------------------------------------------------------------


def test_live_view_asks_the_shards_that_answer(place: DemoPlace, session: Session) -> None:
    with session.acquire(SHARD_0) as leases:
        assert session.publish("bank", [b"1"], under=leases)
        seen = look(place.mount)
    assert seen.offline == ""
    assert seen.path == str(place.mount)
    first, second = seen.shards
    assert (first.freshness.reach, first.leases) == (Reach.ANSWERS, 1)
    assert (second.freshness.reach, second.leases) == (Reach.SILENT, None)
    (row,) = seen.leases
    assert (row.domain, row.node, row.process, row.purpose) == (SHARD_0, "node1", os.getpid(), "counting")
    assert row.holder_present is True
    assert condition(row, seen.clock.now) is Condition.HELD
    assert seen.clock.assumed
    (log,) = seen.logs
    assert log.name == "bank"
    assert [bag.files for bag in log.bags if bag.state is not None] == [1]
    assert log.horizon_ns is not None


def test_sources_of_time_are_asked_also_where_all_is_asked_once(place: DemoPlace, session: Session) -> None:
    times = look(place.mount).times
    assert times is not None
    assert times.freshness.reach is Reach.ANSWERS, times.freshness.problem
    assert "kernel" in [each.source for each in times.sources]


def test_clocks_of_nodes_are_asked_and_no_answer_is_none(place: DemoPlace, session: Session) -> None:
    seen = look(place.mount)
    one, two = seen.clocks
    assert (one.node, one.reach) == ("node1", Reach.ANSWERS)
    assert one.ahead is not None
    assert one.trip_ns is not None
    assert one.radius_ns is not None
    assert one.radius_ns <= one.ahead.radius
    own = seen.clock.now
    assert one.midpoint_ns is not None
    assert abs(one.midpoint_ns - own.midpoint) <= MINUTE  # how long the test stood still
    assert (two.node, two.reach, two.ahead, two.radius_ns) == ("node2", Reach.SILENT, None, None)


def test_clock_that_is_asked_before_the_first_answer_of_the_mount_is_kept_has_none(source: LiveSource) -> None:
    source._ask_mount()
    clock = source._clocks.questions()[1]
    clock.put()
    assert clock.error is not None


def test_shard_without_an_address_is_not_taken_for_dead(place: DemoPlace) -> None:
    second = place.machines[1]
    save_settings(replace(second, peers={}))
    where = MountLocation(place.mount, second.directory, allow_root=True)
    with closing(LiveSource(where, SystemClock())) as source:
        seen = ask_once(source, PATIENCE_NS)
    assert [shard.freshness.reach for shard in seen.shards] == [Reach.NOT_ASKED, Reach.SILENT]
    assert "no address" in seen.shards[0].freshness.problem


def test_process_that_is_gone_is_noticed_while_its_lease_counts(place: DemoPlace, session: Session) -> None:
    with session.acquire(SHARD_0):
        seen = look(place.mount, present=lambda _process: False)
    assert condition(seen.leases[0], seen.clock.now) is Condition.DYING


def test_shard_that_falls_silent_keeps_its_last_answer(place: DemoPlace, source: LiveSource) -> None:
    first = place.machines[0]
    with (
        Cluster.open(place.mount, node_dir=first.directory, allow_root=True) as cluster,
        cluster.session("counting") as session,
    ):
        assert as_daemon(cluster).routes.host.try_host(0, cluster.map)
        with session.acquire(SHARD_0):
            ask_once(source, PATIENCE_NS)
    shard = next(each for each in source.questions() if each.name == "shard 0")
    shard.put()
    seen = source.state_at()
    assert seen.shards[0].freshness.reach is Reach.SILENT
    assert seen.shards[0].leases is None
    assert [row.origin for row in seen.leases] == [LeaseOrigin.LAST_ANSWER]


def test_new_run_of_a_shard_leaves_the_leases_of_the_one_before_on_the_screen(
    place: DemoPlace, source: LiveSource
) -> None:
    first = place.machines[0]
    asked = None
    for run in range(2):
        with Cluster.open(place.mount, node_dir=first.directory, allow_root=True) as cluster:
            assert as_daemon(cluster).routes.host.try_host(0, cluster.map)
            if run == 0:
                with cluster.session("counting") as session, session.acquire(SHARD_0):
                    ask_once(source, PATIENCE_NS)
                    asked = next(each for each in source.questions() if each.name == "shard 0")
            else:
                assert asked is not None
                asked.put()
                answer = asked.answer
                assert isinstance(answer, ShardAnswer)
                assert len(answer.earlier) == 1


def test_copy_is_read_without_settings_and_keys(place: DemoPlace, session: Session, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with session.acquire(SHARD_0) as leases:
        assert session.publish("bank", [b"1"], under=leases)
        until_written(place.mount, SHARD_0.encode())
        shutil.copytree(place.mount, copy)
    seen = look(copy)
    assert "has not joined" in seen.offline
    assert [shard.freshness.reach for shard in seen.shards] == [Reach.NOT_ASKED] * 2
    assert [shard.leases for shard in seen.shards] == [None] * 2
    (row,) = seen.leases
    assert (row.domain, row.origin, row.purpose) == (SHARD_0, LeaseOrigin.LEDGER, "counting")
    assert [log.name for log in seen.logs] == ["bank"]


def test_relinquished_lease_is_not_last_known(place: DemoPlace, session: Session, tmp_path: Path) -> None:
    with session.acquire(SHARD_0):
        pass
    until_written(place.mount, b"relinquished")
    shutil.copytree(place.mount, tmp_path / "copy")
    assert look(tmp_path / "copy").leases == ()


def test_looking_changes_nothing(place: DemoPlace, session: Session, source: LiveSource) -> None:
    with session.acquire(SHARD_0) as leases:
        assert session.publish("bank", [b"1"], under=leases)
    before = set((place.mount / "logs").rglob("*"))
    for _ in range(5):
        for question in source.questions():
            question.put()
        source.state_at()
    assert set((place.mount / "logs").rglob("*")) == before
    assert not list((place.mount / "shards").rglob("0001/*"))


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.ensure_directory("x"),
        lambda s: s.publish("x", b"", "tmp"),
        lambda s: s.ensure_marker("x"),
        lambda s: s.append("x", b"", 0),
        lambda s: s.unlink("TENURE"),
        lambda s: s.server_clock("tmp"),
    ],
)
def test_storage_of_a_watcher_cannot_write(place: DemoPlace, write: object) -> None:
    assert callable(write)
    before = sorted(place.mount.rglob("*"))
    with pytest.raises(Environment) as raised:
        write(WatchingStorage(PosixStorage(place.mount)))
    assert raised.value.code == "read-only"
    assert sorted(place.mount.rglob("*")) == before


def test_process_presence_is_told_by_the_kernel() -> None:
    assert process_is_present(os.getpid())
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert not process_is_present(done.pid)


# -- questions ---------------------------------------------------------------------------------------------------------


def test_question_that_hangs_is_silent_after_a_second() -> None:
    machine = HandMachine(NOW_NS)
    reaches: list[Reach] = []
    question: AskedQuestion[int]

    def ask() -> int:
        reaches.append(question.freshness().reach)
        machine.pass_time(SECOND)
        reaches.append(question.freshness().reach)
        machine.pass_time(1)
        reaches.append(question.freshness().reach)
        return 7

    question = AskedQuestion("mount", SECOND, machine, ask)
    assert question.freshness().reach is Reach.WAITING
    question.put()
    assert reaches == [Reach.WAITING, Reach.WAITING, Reach.SILENT]
    assert (question.freshness().reach, question.answer) == (Reach.ANSWERS, 7)


def never_twice_at_once(body: Callable[[], object], inside: list[Event]) -> None:
    """Assert that two threads that do something are in it one after the other. ``inside``: each while it is there."""
    threads = [Thread(target=body, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    threads[1].join(0.2)
    together = len(inside)
    while any(thread.is_alive() for thread in threads):
        for each in list(inside):
            each.set()
    assert (together, len(inside)) == (1, 2)


def held_up(inside: list[Event]) -> LeaseRows:
    inside.append(here := Event())
    here.wait()
    return LeaseRows()


def test_question_that_hangs_is_not_asked_by_a_second_thread() -> None:
    """The screen opens after a second of waiting for the mount: what opens it must not be raced for."""
    inside: list[Event] = []
    never_twice_at_once(AskedQuestion("mount", SECOND, HandMachine(), lambda: held_up(inside)).put, inside)


def test_rows_are_made_by_one_thread_at_a_time(source: LiveSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subject that is opened is asked about beside the frames of the screen."""
    source.mount.put()
    inside: list[Event] = []
    monkeypatch.setattr(source._rows, "rows", lambda *_: held_up(inside))
    never_twice_at_once(source.state_at, inside)


def test_failed_question_keeps_its_last_answer_and_says_since_when() -> None:
    machine = HandMachine(NOW_NS)
    answers = [1]

    def ask() -> int:
        if not answers:
            raise Environment("gone", "the mount is gone")
        return answers.pop()

    question = AskedQuestion("mount", SECOND, machine, ask)
    question.put()
    machine.pass_time(3 * SECOND)
    question.put()
    freshness = question.freshness()
    assert (freshness.reach, freshness.silent_ns) == (Reach.SILENT, 3 * SECOND)
    assert (freshness.problem, question.answer) == ("the mount is gone", 1)


def test_answer_that_comes_while_one_looks_is_not_of_the_future() -> None:
    class Meanwhile(HandMachine):
        def boot_ns(self) -> int:
            at = super().boot_ns()
            while answers:
                answers.pop()()
            return at

    answers: list[Callable[[], object]] = []
    machine = Meanwhile()
    question = AskedQuestion("x", SECOND, machine, lambda: machine.pass_time(SECOND))
    question.put()
    answers.append(question.put)
    assert (question.freshness().age_ns or 0) >= 0


def test_asking_once_does_not_wait_for_what_hangs() -> None:
    let_go = Event()
    hung = AskedQuestion("mount", SECOND, HandMachine(), lambda: let_go.wait(60))
    source = RecordedSource(state(), questions=(hung,))
    assert ask_once(source, MS) == state()
    assert hung.answer is None
    let_go.set()


# -- what --once prints ------------------------------------------------------------------------------------------------


def test_snapshot_has_every_part_and_keeps_to_the_width() -> None:
    text = text_snapshot(state(), 100)
    for words in ("● HEALTHY", "Nodes", "node2", "Leases   2", "account/02", "▣▣▣■■·■▯▯", "horizon", "Time"):
        assert words in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_snapshot_of_a_silent_shard_has_no_zero() -> None:
    text = text_snapshot(with_shards(silent_shard(), leases=()), 120)
    assert "✗ no answer 3.2 s" in text
    assert "not known: 1 of 1 shards have no answer" in text
    assert "Leases   ?" in text


def test_json_says_null_for_what_is_not_known() -> None:
    fields = json.loads(json.dumps(json_fields(with_shards(silent_shard()))))
    (shard,) = fields["nodes"][0]["shards"]
    assert shard["leases"] is None
    assert shard["reach"] == "no-answer"
    assert shard["silent_ns"] == 3_200 * MS
    assert fields["health"]["level"] == "not healthy"


def test_json_holds_what_the_screen_shows() -> None:
    fields = json_fields(state(leases=(lease(left_ns=-SECOND, holder_present=False),)))
    assert list(fields) == [
        "root",
        "cluster",
        "view",
        "offline_because",
        "health",
        "mount",
        "time",
        "nodes",
        "leases",
        "logs",
        "clocks",
        "clocks_together",
        "time_sources",
    ]
    (row,) = fields["leases"]
    assert row["condition"] == "expired-recovering"
    assert row["process_present"] is False
    assert row["expiry"] == "2026-11-20T22:10:06.400000000Z"
    assert row["expiry_ns"] == NOW_NS - SECOND
    assert fields["logs"][0]["bags"][5] == {
        "start": "2026-11-20T22:10:04.000000000Z",
        "start_ns": NOW_NS - 3_400 * MS,
        "state": "absent",
        "files": 0,
    }
    assert fields["time"]["radius_ns"] == 5 * MS


def test_json_has_the_clocks_of_the_screen_and_whose_is_outside() -> None:
    shown = busy_state()
    fields = json.loads(json.dumps(json_fields(shown)))
    assert [each["node"] for each in fields["clocks"]] == [clock.node for clock in shown.clocks]
    together, found = fields["clocks_together"], agreement(shown.clocks)
    assert together["compared"] == list(found.compared)
    assert together["words"] == agreement_words(found)
    assert together["agree"] is found.good
    assert found.common is not None
    assert together["common_ahead_latest_ns"] == found.common.latest
    assert [each["by_ns"] for each in together["outside"]] == [each.by_ns for each in found.outside]
    of = {each["node"]: each for each in fields["clocks"]}
    for clock in shown.clocks:
        known = clock.ahead
        assert of[clock.node]["ahead_earliest_ns"] == (None if known is None else known.earliest)
        assert of[clock.node]["reach"] == clock.reach.replace(" ", "-")
    assert shown.times is not None
    assert [each["source"] for each in fields["time_sources"]["sources"]] == [s.source for s in shown.times.sources]
    nothing = json_fields(state(clocks=(), times=None))
    assert (nothing["clocks"], nothing["clocks_together"]["agree"], nothing["time_sources"]) == ([], None, None)


def test_json_of_an_unbounded_clock_has_no_interval() -> None:
    unbounded = replace(state().clock, bounded=False)
    fields = json_fields(state(clock=unbounded))["time"]
    assert (fields["earliest_ns"], fields["radius_ns"], fields["bounded"]) == (None, None, False)


def test_command_prints_one_snapshot_where_there_is_no_terminal(
    place: DemoPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(place.mount), "--allow-root"]) == 0
    assert "✗ no answer" in capsys.readouterr().out
    assert main(["top", "--root", str(place.mount), "--once", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["schema"], shown["version"]) == ("tenure.top", 1)
    assert shown["root"] == str(place.mount)


@pytest.mark.parametrize(
    ("words", "status"),
    [(["{tmp}"], Damaged.exit_status), (["{tmp}/nothing"], Environment.exit_status), ([], BadRequest.exit_status)],
)
def test_wrong_path_is_refused_with_its_exit_code(
    words: list[str], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENURE_ROOT", raising=False)
    assert main(["top", *(word.format(tmp=tmp_path) for word in words), "--once"]) == status
    assert "way out" in capsys.readouterr().err


def test_settings_that_are_named_and_cannot_be_used_are_an_error(
    place: DemoPlace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = set_up_place(tmp_path / "other", 2, SystemClock().realtime_ns(), random.Random(f"{tmp_path} other"))
    words = ["top", str(place.mount), "--once", "--allow-root", "--node-dir", str(other.machines[0].directory)]
    assert main(words) == NotTrusted.exit_status
    assert "another cluster" in capsys.readouterr().err


# -- what is loaded, and what may be -----------------------------------------------------------------------------------


def test_one_snapshot_loads_no_screen(repository: Path, place: DemoPlace) -> None:
    statement = (
        f"import tenure.__main__ as m; import io, contextlib\n"
        f"with contextlib.redirect_stdout(io.StringIO()): assert m.main(['top', {str(place.mount)!r}]) == 0"
    )
    modules = modules_after(statement, repository)
    assert "tui.sources.live" in modules
    assert loaded(modules, "textual", "rich", "watchdog", "tui.app", "tui.screens", "tui.widgets") == []


def test_screen_loads_nothing_that_reaches_a_mount(repository: Path) -> None:
    modules = modules_after("import tui.app", repository)
    assert "textual" in modules
    reaching = ("appliance.bag.posix", "appliance.cluster", "appliance.node.records", "appliance.lease", "apsw")
    assert loaded(modules, *reaching, "auditor.evidence.tree", "auditor.audit", "tui.sources") == []


REACHING = {"os", "io", "pathlib", "socket", "shutil", "subprocess", "threading", "time", "mmap", "fcntl", "tempfile"}
PURE = {"auditor.evidence.finding", "auditor.columns.events", "auditor.timeline.state"}
"""What screens may know of the auditor: values, and what is said of them."""


def judges(name: str) -> bool:
    """Whether it is of the auditor, and more than values."""
    return name.split(".", maxsplit=1)[0] == "auditor" and name not in PURE


def imports_of(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield what is imported when a module runs: a name that only a type is known by reaches nothing."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from imports_of(node)


def reaching_imports(root: Path) -> list[str]:
    """Imports in tui/app.py, screens and widgets of what reaches files, sockets, threads or clocks."""
    found = []
    for path in [
        root / "tui/app.py",
        *sorted((root / "tui").glob("screens/*.py")),
        *sorted((root / "tui").glob("widgets/*.py")),
    ]:
        package = path.relative_to(root).parent.as_posix().replace("/", ".")
        for node in imports_of(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                names = [f"{base}.{node.module}" if node.level else node.module or ""]
            for name in names:
                allowed = not (name.split(".")[0] in REACHING or name.startswith("tui.sources") or judges(name))
                if not allowed or name.startswith(("appliance.cluster", "appliance.bag.posix", "appliance.lease")):
                    found.append(f"{path.relative_to(root)}: {name}")
    return found


def test_screen_imports_nothing_that_reaches_a_mount(repository: Path) -> None:
    assert reaching_imports(repository) == []


def test_import_that_reaches_a_mount_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "tui/screens").mkdir(parents=True)
    (tmp_path / "tui/widgets").mkdir()
    (tmp_path / "tui/app.py").write_text("import os.path\nfrom .sources.live import LiveSource\n")
    (tmp_path / "tui/screens/x.py").write_text(
        "from ..sources.mount import MountLocation\nfrom ..model.state import ClusterState\n"
    )
    (tmp_path / "tui/widgets/y.py").write_text("from auditor.evidence.tree import Tree\nimport textual\n")
    assert [each.split(": ")[1] for each in reaching_imports(tmp_path)] == [
        "os.path",
        "tui.sources.live",
        "tui.sources.mount",
        "auditor.evidence.tree",
    ]


def test_command_line_module_has_the_command() -> None:
    from tui.cli import COMMANDS

    assert COMMANDS["top"].run is run_top
