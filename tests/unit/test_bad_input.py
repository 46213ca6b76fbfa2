"""What people get wrong, as a command and as a program: named, with the way out, and nothing half-written."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.formats.birth import Marker
from appliance.formats.framing import MESSAGE_BYTES_MAX, Kind
from appliance.formats.stamped import sign
from tenure.__main__ import main
from tests.support.cluster import Site, fast_policy, tree
from tests.support.spoken import Said, speaker
from tests.support.values import WITNESS_KEY
from timeagent.clock import SystemClock
from timeagent.errors import TenureError
from timeagent.keys import public_line
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    return speaker(capsys, monkeypatch)


READ = ("read", "log")
PUBLISH = ("publish", "log", "--lease", "a", "--wait", "1s")
EVERY_COMMAND = [READ, PUBLISH, ("lease", "ls"), ("bag", "ls", "log"), ("node", "run")]


def spoil_marker(data: bytes) -> Callable[[Site], object]:
    return lambda site: (site.root / "TENURE").write_bytes(data)


def spoil(kind: str, change: Callable[[bytes], bytes]) -> Callable[[Site], object]:
    def change_record(site: Site) -> None:
        path = site.root / kind / "00000001"
        path.write_bytes(change(path.read_bytes()))

    return change_record


def foreign_record(site: Site) -> None:
    policy = msgspec.structs.replace(fast_policy(), cluster_id=site.cluster_id)
    (site.root / "policy" / "00000001").write_bytes(sign(Kind.POLICY, policy, WITNESS_KEY))


def foreign_trust(site: Site) -> None:
    path = site.root / "trust" / "00000001"
    path.write_bytes(sign(Kind.TRUST, site.registers.trust(1), WITNESS_KEY))


def broken_rule(site: Site) -> None:
    policy = msgspec.structs.replace(site.policy, number=2, grace_ns=0)
    (site.root / "policy" / "00000002").write_bytes(sign(Kind.POLICY, policy, site.root_key))


def other_cluster(site: Site) -> None:
    (site.root / "TENURE").write_bytes(Marker(site.cluster_id, WITNESS_KEY.public).encode())


def other_pin(site: Site) -> None:
    path = site.node_dir() / "node.toml"
    mine, other = public_line(site.root_key.public, "x")[:60], public_line(WITNESS_KEY.public, "x")[:60]
    path.write_text(path.read_text().replace(mine, other))


def stranger_keys(site: Site) -> None:
    for name in ("time.key", "witness.key"):
        (site.node_dir() / name).write_bytes(WITNESS_KEY.to_pem())


def emptied(site: Site) -> None:
    shutil.rmtree(site.root)
    site.root.mkdir()


def a_file(site: Site) -> None:
    shutil.rmtree(site.root)
    site.root.touch()


def flipped(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


SPOILED: list[tuple[str, Callable[[Site], object], int, str]] = [
    ("missing directory", lambda site: shutil.rmtree(site.root), 74, "no-root"),
    ("unmounted mount point", emptied, 74, "empty-root"),
    ("not a root", lambda site: (site.root / "TENURE").unlink(), 65, "not-a-root"),
    ("a file for a directory", a_file, 74, "not-a-directory"),
    ("marker of another format", spoil_marker(b"tenure root, format 9\n"), 65, "bad-marker"),
    ("empty marker", spoil_marker(b""), 65, "bad-marker"),
    ("marker of random bytes", spoil_marker(bytes(range(256))), 65, "bad-marker"),
    ("another cluster's marker", other_cluster, 77, "other-cluster"),
    ("another cluster pinned", other_pin, 77, "other-cluster"),
    ("damaged policy", spoil("policy", flipped), 65, "piece-damaged"),
    ("truncated policy", spoil("policy", lambda data: data[:-3]), 65, "piece-damaged"),
    ("empty policy", spoil("policy", lambda _: b""), 65, "piece-damaged"),
    ("foreign policy", foreign_record, 77, "record-not-trusted"),
    ("policy that breaks a rule", broken_rule, 78, "bad-policy"),
    ("no policy", lambda site: shutil.rmtree(site.root / "policy"), 65, "no-record"),
    ("damaged trust", spoil("trust", flipped), 65, "piece-damaged"),
    ("truncated trust", spoil("trust", lambda data: data[:10]), 65, "piece-damaged"),
    ("another cluster's trust", foreign_trust, 77, "record-not-trusted"),
    ("damaged map", spoil("map", flipped), 65, "piece-damaged"),
    ("no map", lambda site: shutil.rmtree(site.root / "map"), 65, "no-record"),
    ("keys that the cluster does not know", stranger_keys, 77, "key-not-trusted"),
    ("no settings", lambda site: (site.node_dir() / "node.toml").unlink(), 78, "not-joined"),
    ("no key", lambda site: (site.node_dir() / "time.key").unlink(), 78, "key-unreadable"),
    ("open key", lambda site: (site.node_dir() / "time.key").chmod(0o644), 77, "key-mode"),
    ("damaged settings", lambda site: (site.node_dir() / "node.toml").write_text("node ="), 78, "bad-settings"),
]


@pytest.mark.parametrize(("plant", "status", "code"), [each[1:] for each in SPOILED], ids=[each[0] for each in SPOILED])
def test_spoiled_root_or_node_is_named_by_every_command_and_nothing_is_written(
    site: Site, say: Callable[..., Said], plant: Callable[[Site], object], status: int, code: str
) -> None:
    plant(site)
    before = tree(site.root, site.node_dir(), site.tmpfs)
    with pytest.raises(TenureError) as refused:
        site.open()
    assert (refused.value.exit_status, refused.value.code) == (status, code), refused.value
    assert refused.value.hint
    for words in EVERY_COMMAND:
        said = say(*words, *site.options(), stdin=b"1\n")
        assert said.is_error(status, code), (words, said.status, said.err)
    assert tree(site.root, site.node_dir(), site.tmpfs) == before


def test_joining_with_another_clusters_root_key_is_refused(
    site: Site, say: Callable[..., Said], tmp_path: Path
) -> None:
    (tmp_path / "other.key").write_bytes(WITNESS_KEY.to_pem())
    (tmp_path / "other.key").chmod(0o600)
    before = tree(tmp_path)
    words = ["join", str(site.root), "--node", "n9", "--node-dir", str(tmp_path / "n9"), "--allow-root"]
    assert say(*words, "--root-key", str(tmp_path / "other.key")).is_error(77, "other-cluster")
    assert say(*words, "--root-key", str(tmp_path / "no.key")).is_error(78, "key-unreadable")
    assert say(*words[:2], "--node", "node1", *words[4:], "--root-key", str(site.root_key_file)).is_error(
        77, "node-exists"
    )
    assert say(*words[:2], "--node", "Not A Name", *words[4:], "--root-key", str(site.root_key_file)).is_error(
        2, "bad-node-name"
    )
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["--assume-radius", "10s"], 78, "bad-policy"),
        (["--assume-radius", "5ms", "--grace", "1s"], 78, "bad-policy"),
        (["--assume-radius", "5ms", "--span", "7s"], 78, "bad-grid"),
        (["--assume-radius", "five"], 2, "bad-span"),
        (["--assume-radius", "5ms", "--node", "Ä"], 2, "bad-node-name"),
    ],
)
def test_init_with_bad_numbers_or_names_makes_nothing(
    say: Callable[..., Said], tmp_path: Path, words: list[str], status: int, code: str
) -> None:
    (tmp_path / "root").mkdir()
    before = tree(tmp_path)
    said = say("init", str(tmp_path / "root"), "--node-dir", str(tmp_path / "n"), "--allow-root", *words)
    assert said.is_error(status, code), said.err
    assert tree(tmp_path) == before


def test_init_with_too_wide_a_radius_says_what_would_do(say: Callable[..., Said], tmp_path: Path) -> None:
    said = say("init", str(tmp_path), "--allow-root", "--assume-radius", "500ms")
    assert "way out: say --assume-radius of at most 250 ms" in said.err


def test_init_over_a_root_or_a_full_directory_makes_nothing(
    site: Site, say: Callable[..., Said], tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    before = tree(tmp_path)
    rest = ["--node-dir", str(tmp_path / "n"), "--allow-root", "--assume-radius", "5ms"]
    assert say("init", str(site.root), *rest).is_error(74, "root-exists")
    assert say("init", str(tmp_path / "full"), *rest).is_error(74, "root-not-empty")
    assert say("init", str(tmp_path / "none"), *rest).is_error(74, "no-root")
    assert tree(tmp_path) == before


def test_two_roots_at_once_are_refused(site: Site, say: Callable[..., Said], tmp_path: Path) -> None:
    before = tree(site.root, site.node_dir())
    rest = ["--root", str(tmp_path / "other"), "--node-dir", str(tmp_path / "n"), "--allow-root"]
    for word in ("init", "join", "leave"):
        assert say(word, str(site.root), *rest).is_error(2, "two-roots"), word
    assert tree(site.root, site.node_dir()) == before
    assert not (tmp_path / "n").exists()


def test_node_that_never_was_has_not_left(site: Site, say: Callable[..., Said]) -> None:
    before = tree(site.root)
    rest = ["--node-dir", str(site.node_dir()), "--allow-root"]
    for key in ([], ["--root-key", str(site.root_key_file)]):
        assert say("leave", str(site.root), "--node", "nod1", *key, *rest).is_error(2, "unknown-node"), key
    assert tree(site.root) == before


@pytest.mark.parametrize(
    "words",
    [
        ("trust", "show", "nod1"),
        ("trust", "revoke", "nod1", "--root-key", "KEY"),
        ("trust", "revoke", "nod1", "--key", "SHA256:x", "--root-key", "KEY"),
        ("trust", "move", "nod1", "10.0.0.7", "--root-key", "KEY"),
        ("shards", "move", "0", "nod1", "--root-key", "KEY"),
        ("shards", "reshard", "2", "--nodes", "nod1", "--root-key", "KEY"),
    ],
)
def test_node_that_never_was_is_refused_everywhere_in_the_same_way(
    site: Site, say: Callable[..., Said], words: tuple[str, ...]
) -> None:
    before = tree(site.root)
    given = [str(site.root_key_file) if word == "KEY" else word for word in words]
    said = say(*given, *site.options())
    assert said.is_error(2, "unknown-node"), said.err
    assert "nod1" in said.err
    assert tree(site.root) == before


def test_join_that_waits_for_no_span_asks_nobody(site: Site, say: Callable[..., Said], tmp_path: Path) -> None:
    before = tree(site.root)
    rest = ["--node", "n9", "--node-dir", str(tmp_path / "n9"), "--allow-root"]
    assert say("join", str(site.root), "--wait", "soon", *rest).is_error(2, "bad-span")
    assert tree(site.root) == before
    assert not (tmp_path / "n9").exists()


def test_package_that_is_not_there_is_said_so(site: Site, say: Callable[..., Said], tmp_path: Path) -> None:
    said = say("node", "upgrade", "--no-systemd", "--package", str(tmp_path / "x.deb"), *site.options())
    assert said.is_error(2, "bad-package")
    assert "x.deb is not there" in said.err


@pytest.mark.parametrize("text", ["{}", '{"a": ' * 100_000], ids=["empty", "deep"])
def test_file_that_is_no_evidence_is_refused_with_the_way_out(
    say: Callable[..., Said], tmp_path: Path, text: str
) -> None:
    (tmp_path / "x.json").write_text(text)
    assert say("time", "evidence", str(tmp_path / "x.json")).is_error(65, "evidence-damaged")


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--nodes", "1"), "too-few-nodes"), (("--seconds", "-1"), "bad-seconds"), (("--seconds", "nan"), "bad-seconds")],
)
def test_demo_of_nothing_is_refused_and_makes_nothing(
    say: Callable[..., Said], tmp_path: Path, words: tuple[str, ...], code: str
) -> None:
    assert say("demo", str(tmp_path / "demo"), *words).is_error(2, code)
    assert not (tmp_path / "demo").exists()


# -- who and what with -------------------------------------------------------------------------------------------------


def test_superuser_is_refused_without_being_told_otherwise(
    site: Site, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    before = tree(site.root, site.node_dir())
    for words in EVERY_COMMAND:
        said = say(*words, *site.options()[:-1])
        assert said.is_error(77, "root-user"), words
        assert "--allow-root" in said.err
    assert say("init", str(site.root / "x"), "--assume-radius", "5ms").is_error(77, "root-user")
    assert say("join", str(site.root), "--root-key", str(site.root_key_file)).is_error(77, "root-user")
    assert tree(site.root, site.node_dir()) == before


def with_policy(site: Site, **changes: int) -> None:
    policy = msgspec.structs.replace(site.policy, number=2, **changes)
    assert site.registers.publish(Kind.POLICY, policy, site.root_key)


class Deaf:
    """The kernel's clock, which nobody disciplines."""

    name = "kernel"

    def __init__(self, machine: object) -> None:
        pass

    def sample(self) -> object:
        from timeagent.errors import BadTime

        raise BadTime("not-synchronized", "the kernel's clock is unsynchronised")


@pytest.mark.parametrize(("changes", "code"), [({"assumed_radius_ns": 0}, "no-time")])
def test_machine_without_a_bounded_clock_writes_nothing(
    site: Site, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], code: str
) -> None:
    monkeypatch.setattr("appliance.cluster.KernelSource", Deaf)
    with_policy(site, **changes)
    before = tree(site.root)
    for words in (PUBLISH, ("lease", "ls"), ("node", "run")):
        said = say(*words, *site.options(), stdin=b"1\n")
        assert said.is_error(75, code), (words, said.err)
        assert "chrony" in said.err
    assert tree(site.root) == before


def test_clock_wider_than_the_policy_writes_nothing(
    site: Site, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    from timeagent.sources.local import AssumedSource

    class Coarse(AssumedSource):
        name = "coarse"

    monkeypatch.setattr("appliance.cluster.KernelSource", lambda machine: Coarse(machine, 30_000_000))
    before = tree(site.root)
    for words in (PUBLISH, ("node", "run")):
        said = say(*words, *site.options(), stdin=b"1\n")
        assert said.is_error(75, "radius-too-wide"), (words, said.err)
        assert "30 ms" in said.err
        assert "20 ms" in said.err
    assert tree(site.root) == before


@pytest.fixture
def disk() -> Iterator[Path]:
    """A directory that is not in memory, as others of a test may be."""
    with TemporaryDirectory(dir="/var/tmp") as place:
        yield Path(place)


@pytest.mark.parametrize("on_disk", [False, True])
def test_missing_tmpfs_writes_nothing(
    site: Site, say: Callable[..., Said], tmp_path: Path, disk: Path, *, on_disk: bool
) -> None:
    path, place = site.node_dir() / "node.toml", disk if on_disk else tmp_path / "no/d/ir"
    path.write_text(path.read_text().replace(str(site.tmpfs / "node1"), str(place)))
    before = tree(tmp_path, disk)
    for words in (PUBLISH, ("lease", "ls"), ("node", "run")):
        said = say(*words, *site.options(), stdin=b"1\n")
        assert said.is_error(74, "not-tmpfs") or (said.is_error(74, "no-runtime") and not on_disk), said.err
        assert "node.toml" in said.err
    assert tree(tmp_path, disk) == before


# -- what is asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["", "x" * 513, "ü" * 257, "a\nb", "a\0b", "\x7f", "\udcff"])
def test_domain_out_of_range_is_refused_and_nothing_is_written(
    site: Site, say: Callable[..., Said], domain: str
) -> None:
    before = tree(site.root)
    by_hand = [("lease", verb, domain) for verb in ("show", "watch", "acquire", "renew", "relinquish", "revoke")]
    under_session = ("lease", "acquire", domain, "--session", "00" * 16)
    for words in (("publish", "log", "--lease", domain), ("lease", "hold", domain), *by_hand, under_session):
        code = "bad-domain" if domain or words[0] != "publish" else "empty-value"
        assert say(*words, *site.options(), stdin=b"1\n").is_error(2, code), words
    assert tree(site.root) == before


@pytest.mark.parametrize("domain", ["x", "x" * 512, "ü" * 256, "a b/c:d"])
def test_domain_in_range_is_taken(site: Site, say: Callable[..., Said], domain: str) -> None:
    assert say("publish", "log", "--lease", domain, *site.options(), stdin=b"1\n").status == 0


@pytest.mark.parametrize("log", ["", ".hidden", "a/b", "../up", "x" * 101, "ü"])
def test_log_name_out_of_range_is_refused_and_no_log_is_made(site: Site, say: Callable[..., Said], log: str) -> None:
    before = set((site.root / "logs").iterdir())
    assert say("publish", log, "--lease", "a", *site.options(), stdin=b"1\n").is_error(2, "bad-log-name")
    assert say("read", log, *site.options()).is_error(2, "bad-log-name")
    assert set((site.root / "logs").iterdir()) == before


@pytest.mark.parametrize("kind", [(), ("--kind", "maildir"), ("--kind", "log")])
def test_payload_over_the_limit_is_refused_stating_it_and_no_log_is_made(
    site: Site, say: Callable[..., Said], kind: tuple[str, ...]
) -> None:
    said = say(*PUBLISH, *kind, *site.options(), stdin=b"x" * (MESSAGE_BYTES_MAX + 1))
    assert said.is_error(2, "message-too-large")
    assert str(MESSAGE_BYTES_MAX) in said.err
    assert list((site.root / "logs").iterdir()) == []


@pytest.mark.parametrize("kind", [(), ("--kind", "log")])
def test_payload_over_the_limit_behind_good_ones_says_how_many_are_committed(
    site: Site, say: Callable[..., Said], kind: tuple[str, ...]
) -> None:
    lines = b"".join(b"%d\n" % number for number in range(4096))
    said = say(*PUBLISH, *kind, *site.options(), stdin=lines + b"x" * (MESSAGE_BYTES_MAX + 1))
    assert said.is_error(2, "message-too-large")
    assert "4,096 messages committed to log before" in said.err


# Who does not know that would write them again.
@pytest.mark.parametrize("end", [OSError(5, "Input/output error"), SystemExit(143), KeyboardInterrupt()])
def test_publishing_that_is_cut_off_says_how_many_are_committed(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    def batches(_: object) -> Iterator[list[bytes]]:
        yield [b"1", b"2"]
        raise end

    monkeypatch.setattr("appliance.cli.messages._batches", batches)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    with contextlib.suppress(SystemExit):
        main([*PUBLISH, *site.options()])
    assert "2 messages committed to log before" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [(), ("--kind", "log")])
def test_payload_at_the_limit_comes_back(site: Site, say: Callable[..., Said], kind: tuple[str, ...]) -> None:
    line = b"x" * MESSAGE_BYTES_MAX + b"\n"
    assert say(*PUBLISH, *kind, *site.options(), stdin=line + b"\n" + line).status == 0
    assert say("read", "log", "--level", "latest", *site.options()).out.encode() == line + b"\n" + line


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("read", "nolog"), "no-such-log"),
        (("bag", "ls", "nolog"), "no-such-log"),
        (("bag", "settle", "nolog"), "no-such-log"),
        (("bag", "show", "logs/log/2026-11-21/00-00/x"), "no-such-log"),
        (("bag", "show", "elsewhere"), "no-such-bag"),
        (("bag", "settle", "nolog", "--to", "tomorrow"), "bad-instant"),
        (("read", "log", "--after", "yesterday"), "bad-instant"),
        (("publish", "log", "--lease", "a", "--wait", "a while"), "bad-span"),
        (("publish", "log", "/nowhere/at/all", "--lease", "a"), "no-such-file"),
        (("publish", "log", "--lease", "a", "--purpose", "x" * 129), "bad-purpose"),
        (("lease", "hold", "a", "--seconds", "soon"), "bad-span"),
    ],
)
def test_wrong_argument_is_refused_by_name(
    site: Site, say: Callable[..., Said], words: tuple[str, ...], code: str
) -> None:
    assert say(*words, *site.options(), stdin=b"").is_error(2, code)
    assert list((site.root / "logs").iterdir()) == []


def test_settling_far_ahead_is_refused_and_nearer_says_how_long(site: Site, say: Callable[..., Said]) -> None:
    assert say(*PUBLISH, *site.options(), stdin=b"1\n").status == 0
    for to in ("2261-01-01T00:00:00Z", str(SystemClock().realtime_ns() + 3600 * SECOND)):
        said = say("bag", "settle", "log", "--to", to, *site.options())
        assert said.is_error(2, "too-far-ahead")
        assert "--wait " in said.err
    near = str(SystemClock().realtime_ns() + SECOND // 2)
    assert say("bag", "settle", "log", "--to", near, "--wait", "0s", *site.options()).is_error(2, "too-far-ahead")
    said = say("bag", "settle", "log", "--to", near, *site.options())
    assert said.status == 0
    assert "at the earliest" in said.err


def test_no_root_named_is_refused_by_name(say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_ROOT", raising=False)
    said = say("read", "log", "--allow-root")
    assert said.is_error(2, "no-root-named")
    assert "TENURE_ROOT" in said.err
