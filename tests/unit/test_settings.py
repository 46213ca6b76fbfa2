"""A node's directory: written, read back, and refused by name where it is wrong."""

from __future__ import annotations

import os
import resource
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.formats.names import Address
from appliance.node import settings as module
from appliance.node.settings import (
    EtcdAccess,
    Settings,
    Sharing,
    find_settings,
    is_there,
    load_settings,
    node_directories,
    save_settings,
)
from tests.support.values import CLUSTER, ROOT_KEY
from timeagent.errors import BadConfiguration, Environment, NotTrusted
from timeagent.keys import Purpose, make_node_keys, public_line


def settings(directory: Path, **changes: object) -> Settings:
    fields: dict[str, object] = {
        "directory": directory,
        "node": "node1",
        "root": Path('/srv/a "quoted"\n root\\'),
        "root_key": ROOT_KEY.public,
        "runtime": None,
        "peers": {},
    }
    return Settings(**(fields | changes))  # type: ignore[arg-type]


# The only character that JSON's words may hold as it is, and TOML's may not.
def test_root_with_a_delete_character_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    saved = settings(tmp_path, root=Path("/srv/a\x7fb"))
    save_settings(saved)
    assert load_settings(tmp_path) == saved


@pytest.mark.parametrize("runtime", [None, Path("/run/tenure")])
@pytest.mark.parametrize("peers", [{}, {"node2": Path("/dev/shm/x"), "n-3": Path("/dev/shm/y z")}])
def test_settings_are_read_back_as_they_were_written(
    tmp_path: Path, runtime: Path | None, peers: dict[str, Path]
) -> None:
    saved = settings(tmp_path, runtime=runtime, peers=peers)
    save_settings(saved)
    assert load_settings(tmp_path) == saved


@pytest.mark.parametrize("changes", [{"pack": False}, {"retention_days": 90}, {"pack": False, "retention_days": 1}])
def test_what_becomes_of_packs_is_read_back_as_it_was_written(tmp_path: Path, changes: dict[str, object]) -> None:
    saved = settings(tmp_path, peers={"node2": Path("/dev/shm/x")}, **changes)
    save_settings(saved)
    assert load_settings(tmp_path) == saved


@pytest.mark.parametrize(
    "etcd",
    [
        EtcdAccess(("http://10.0.0.1:2379",)),
        EtcdAccess(("https://a:1", "https://b:2"), ca="/etc/ca.pem", cert='/etc/a "c".pem', key="/etc/key.pem"),
    ],
)
def test_etcd_is_read_back_as_it_was_written(tmp_path: Path, etcd: EtcdAccess) -> None:
    saved = settings(tmp_path, etcd=etcd, peers={"node2": Path("/dev/shm/x")})
    save_settings(saved)
    assert load_settings(tmp_path) == saved


KEY_LINE = public_line(ROOT_KEY.public, "r")


@pytest.mark.parametrize("http", [Address("::1", 7421), Path("/run/x y.sock")])
def test_addresses_and_choices_are_read_back_as_they_were_written(tmp_path: Path, http: Address | Path) -> None:
    saved = settings(tmp_path, listen=Address("0.0.0.0", 7420), http=http, group="watchers", node_writer=Sharing.NEVER)
    save_settings(saved)
    assert load_settings(tmp_path) == saved


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "node"),
        ("node = ", "node.toml"),
        ('node = 7\nroot = "/r"\nroot_key = "k"', "node"),
        (f'node = "n"\nroot = "/r"\nroot_key = "{public_line(ROOT_KEY.public, "r")}"\ncolour = "red"', "colour"),
        ('node = "n"\nroot = "/r"\nroot_key = "ssh-rsa AAAA"', "node.toml"),
        (f'node = "n"\nroot = "/r"\nroot_key = "{public_line(ROOT_KEY.public, "r")}"\nlisten = "a:0"', "listen"),
        (f'node = "n"\nroot = "/r"\nroot_key = "{public_line(ROOT_KEY.public, "r")}"\nhttp = ":"', "http"),
        (
            f'node = "n"\nroot = "/r"\nroot_key = "{public_line(ROOT_KEY.public, "r")}"\n[etcd]\nendpoints = []',
            "etcd.endpoints",
        ),
        *(
            (
                f'node = "n"\nroot = "/r"\nroot_key = "{KEY_LINE}"\n[etcd]\nendpoints = ["{at}"]',
                at,
            )
            for at in ("a:1", "http://", "https://a:99999", "http://a:b", "http://[::1", "http://me:secret@a:2379")
        ),
        (
            f'node = "n"\nroot = "/r"\nroot_key = "{public_line(ROOT_KEY.public, "r")}"\n[peers]\nb = "tcp:x"',
            "tcp:x",
        ),
        (f'node = "Node 1"\nroot = "/r"\nroot_key = "{KEY_LINE}"', "Node 1"),
        (f'node = "n"\nroot = "s3://"\nroot_key = "{KEY_LINE}"', "s3://"),
        (f'node = "n"\nroot = "/r"\nroot_key = "{KEY_LINE}"\n[peers]\nB_2 = "unix:/run/x"', "B_2"),
    ],
)
def test_bad_settings_are_refused_naming_the_file_and_the_entry(tmp_path: Path, text: str, names: str) -> None:
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(BadConfiguration) as refused:
        load_settings(tmp_path)
    assert str(tmp_path / "node.toml") in refused.value.message
    assert names in refused.value.message


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_bytes(b"node = \xff")
    with pytest.raises(BadConfiguration, match=r"node\.toml"):
        load_settings(tmp_path)


def test_settings_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "node.toml").mkdir()
    with pytest.raises(BadConfiguration, match="cannot read"):
        find_settings(CLUSTER, Path("/r"), tmp_path)


def test_machine_that_has_not_joined_is_told_where_was_looked_and_how_to_join(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration) as refused:
        find_settings(CLUSTER, Path("/srv/root"), tmp_path)
    assert refused.value.code == "not-joined"
    assert str(tmp_path / "node.toml") in refused.value.message
    assert refused.value.hint == "run: tenure join /srv/root"
    with pytest.raises(BadConfiguration, match="or name where its settings are: --node-dir"):
        find_settings(CLUSTER, Path("/srv/root"))


def test_usual_places_are_the_systems_and_then_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(module, "SYSTEM_DIRECTORY", tmp_path / "etc")
    system, own = node_directories(CLUSTER)
    assert system == tmp_path / "etc" / CLUSTER.hex()
    assert own == tmp_path / ".config" / "tenure" / CLUSTER.hex()
    for place, node in ((own, "own"), (system, "system")):
        place.mkdir(parents=True)
        save_settings(settings(place, node=node))
        assert find_settings(CLUSTER, Path("/r")).node == node


def test_user_without_a_home_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert len(node_directories(CLUSTER)) == 1


def test_directory_of_another_user_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(self: Path, **_: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", refused)
    assert not is_there(tmp_path)


def test_keys_are_private_from_the_first_byte_and_never_overwritten(tmp_path: Path) -> None:
    place = tmp_path / "new" / "node"
    publics = make_node_keys(place)
    assert len(set(publics.values())) == len(Purpose)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    for purpose in Purpose:
        assert stat.S_IMODE((place / f"{purpose}.key").stat().st_mode) == 0o600
    loaded = settings(place)
    assert {purpose: loaded.key(purpose).public for purpose in Purpose} == publics
    with pytest.raises(Environment, match="exists already"):
        make_node_keys(place)


# Whoever may write to a directory above can put another one in the node's place, with keys and settings of their own.
@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_nobody_else_may_change_what_is_made_for_a_node(tmp_path: Path, umask: int) -> None:
    place = tmp_path / "home" / ".config" / "tenure" / "node"
    before = os.umask(umask)
    try:
        make_node_keys(place)
        save_settings(settings(place))
    finally:
        os.umask(before)
    made = [path for path in tmp_path.rglob("*") if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)]
    assert made == []


def test_key_that_others_may_read_is_not_trusted(tmp_path: Path) -> None:
    make_node_keys(tmp_path / "n")
    (tmp_path / "n" / "time.key").chmod(0o644)
    with pytest.raises(NotTrusted, match="0644"):
        settings(tmp_path / "n").key(Purpose.TIME)


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Environment) as refused:
        make_node_keys(tmp_path / "file" / "node")
    assert refused.value.code == "node-dir-unwritable"
    with pytest.raises(Environment):
        save_settings(settings(tmp_path / "file"))


# A full disk: a part of the file would be in the way of who frees space and joins again.
def test_settings_that_find_no_room_leave_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(Environment) as refused:
            save_settings(settings(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.value.code == "node-dir-unwritable"
    assert list(tmp_path.iterdir()) == []


# Whoever tries again after a kill would find a part of a file, which every command refuses.
def test_settings_are_there_as_a_whole_or_not_at_all_and_everybody_may_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    umask = os.umask(0o077)
    try:
        save_settings(settings(tmp_path))
    finally:
        os.umask(umask)
    path = tmp_path / "node.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.unlink()
    link, seen = os.link, []

    def watched(part: Path, whole: Path) -> None:
        seen.append((part.read_bytes()[-1:], whole.exists()))
        link(part, whole)

    monkeypatch.setattr(os, "link", watched)
    save_settings(replace(settings(tmp_path), pack=False))
    assert seen == [(b"\n", False)], "all of it has another name until it is on the disk"
    assert [each.name for each in tmp_path.iterdir()] == ["node.toml"]
