"""``tenure trust``: keys are listed, issued, rotated and revoked; what was signed before stays good, for years."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tenure.__main__ import main
from tests.support.cluster import Site, tree
from timeagent.keys import (
    CREDENTIALS,
    Purpose,
    Signer,
    fingerprint,
    key_file_name,
    key_path,
    load_node_key,
    public_line,
    save_private_key,
    stage_keys,
    take_up,
)
from timeagent.signedtime import ClockStatus, TimeFlags, sign_time
from timeagent.units import DAY, TimeInterval, rfc3339

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def say(site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    return Say(site, capsys, monkeypatch)


class Say:
    """Run a command about the site in this process; return what it said on stdout."""

    def __init__(self, site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.site, self._capsys, self._monkeypatch = site, capsys, monkeypatch
        self.err = ""

    def __call__(self, *words: str, status: int = 0, stdin: bytes = b"", on_site: bool = True) -> str:
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        done = main([*words, *(self.site.options() if on_site else ())])
        out, self.err = self._capsys.readouterr()
        assert done == status, (words, done, self.err)
        return out

    def rooted(self, *words: str, status: int = 0) -> str:
        return self(*words, "--root-key", str(self.site.root_key_file), status=status)

    def listed(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self("trust", "ls", "--json"))["keys"]
        return listed


def test_every_key_is_listed_with_the_fingerprint_that_ssh_keygen_prints(say: Say, tmp_path: Path) -> None:
    listed = say.listed()
    assert [key["purpose"] for key in listed] == ["time", "witness", "roughtime", "tls"]
    assert [key["fingerprint"] for key in listed] == [
        fingerprint(load_node_key(say.site.node_dir(), purpose).public) for purpose in Purpose
    ]
    assert len(say("trust", "ls").splitlines()) == 4
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    for key in listed:
        (tmp_path / "key.pub").write_text(public_line(bytes.fromhex(key["public"]), "x") + "\n")
        told = subprocess.run(
            ["ssh-keygen", "-l", "-f", tmp_path / "key.pub"], capture_output=True, text=True, check=True, timeout=60
        )
        assert told.stdout.split()[1] == key["fingerprint"]


def test_public_lines_of_a_node_are_printed_and_verify_its_times(say: Say, tmp_path: Path) -> None:
    node = say.listed()[0]["node"]
    lines = say("trust", "show", node).splitlines()
    assert lines == json.loads(say("trust", "show", node, "--json"))["public"]
    assert [line.split()[2] for line in lines] == [f"{node}:{purpose}" for purpose in Purpose]
    (tmp_path / "time.pub").write_text(say("trust", "show", node, "--purpose", "time"))
    signer = load_node_key(say.site.node_dir(), Purpose.TIME)
    token = sign_time(
        signer,
        TimeInterval(5, 9),
        status=ClockStatus.SYNCHRONIZED,
        flags=TimeFlags.NONE,
        staleness_ns=0,
        sequence=1,
        clock_epoch=1,
    )
    (tmp_path / "token").write_bytes(token.encode())
    assert main(["time", "verify", str(tmp_path / "token"), "--key", str(tmp_path / "time.pub")]) == 0
    (tmp_path / "tls.pub").write_text(say("trust", "show", node, "--purpose", "tls"))
    assert main(["time", "verify", str(tmp_path / "token"), "--key", str(tmp_path / "tls.pub")]) == 1
    listed = {key["purpose"]: key for key in say.listed()}
    assert token.key_id.hex() == listed["time"]["key_id"]


def test_key_that_does_not_count_any_more_is_not_shown(say: Say) -> None:
    node = say.listed()[0]["node"]
    say.rooted("trust", "revoke", node, "--from", rfc3339(0))
    assert say("trust", "show", node, status=77) == ""
    assert "no key of" in say.err
    assert say("trust", "show", "nobody", status=2) == ""


def test_rotated_keys_are_used_and_the_earlier_ones_end_after_the_overlap(say: Say) -> None:
    before = say.listed()
    say.rooted("trust", "rotate", "--overlap", "2h", "--purpose", "time", "--purpose", "tls")
    after = say.listed()
    assert [key["fingerprint"] for key in after[:4]] == [key["fingerprint"] for key in before]
    changed = [key["purpose"] for key, old in zip(after, before, strict=False) if key != old]
    assert changed == ["time", "tls"]
    assert [key["purpose"] for key in after[4:]] == ["time", "tls"]
    ends = {key["valid_until_ns"] - key["valid_from_ns"] for key in (after[0], after[3])}
    assert all(DAY < span < 2 * DAY for span in ends)
    place = say.site.node_dir()
    assert key_path(place, Purpose.TIME).name == "time-2.key"
    assert load_node_key(place, Purpose.TIME).public.hex() == after[4]["public"]
    assert not list(place.glob("*.staged"))
    say("publish", "log", "--lease", "a", stdin=b"signed with the new key\n")


def test_key_that_is_kept_elsewhere_is_not_rotated_here(say: Say) -> None:
    (say.site.node_dir() / "roughtime.key").unlink()
    say.rooted("trust", "rotate")
    assert [key["purpose"] for key in say.listed()[4:]] == ["time", "witness", "tls"]
    assert not list(say.site.node_dir().glob("roughtime*"))


def test_root_key_need_not_come_to_the_node(say: Say, tmp_path: Path) -> None:
    lines = say("trust", "rotate", "--purpose", "witness", status=1)
    assert lines.rstrip().endswith(" node1:witness")
    assert "not in use yet" in say.err
    assert say("trust", "rotate", "--purpose", "witness", status=1) == lines
    assert len(say.listed()) == 4
    assert key_path(say.site.node_dir(), Purpose.WITNESS).name == "witness.key"
    (tmp_path / "new.pub").write_text(lines)
    say.rooted("trust", "issue", "node1", "--public", str(tmp_path / "new.pub"))
    say.rooted("trust", "issue", "node1", "--public", str(tmp_path / "new.pub"), status=2)
    assert "knows this key already" in say.err
    assert "it is done" in say.err, "who repeats what was cut off need not make a key"
    say("trust", "rotate", "--purpose", "witness")
    assert key_path(say.site.node_dir(), Purpose.WITNESS).name == "witness-2.key"
    assert len(say.listed()) == 5


@pytest.mark.parametrize(
    "line", ["", "ssh-ed25519 AAAA node1:witness", "{key} node2:time", "{key} node1:cooking", "{key} node1"]
)
def test_lines_that_are_no_key_of_the_node_are_refused(say: Say, tmp_path: Path, line: str) -> None:
    bare = public_line(Signer(b"7" * 32).public, "").strip()
    (tmp_path / "bad.pub").write_text(line.format(key=bare) + "\n")
    status = 78 if "AAAA node1" in line else 2
    say.rooted("trust", "issue", "node1", "--public", str(tmp_path / "bad.pub"), status=status)
    assert len(say.listed()) == 4


def test_one_key_is_revoked_by_its_fingerprint_from_an_instant(say: Say) -> None:
    key = say.listed()[0]
    instant = rfc3339(key["valid_from_ns"] + DAY)
    say.rooted("trust", "revoke", "node1", "--key", key["fingerprint"], "--from", instant)
    revoked = [entry for entry in say.listed() if "revoked_from_ns" in entry]
    assert [(entry["purpose"], entry["revoked_from"]) for entry in revoked] == [("time", instant)]
    say.rooted("trust", "revoke", "node1", "--key", "SHA256:nobody", status=77)
    say.rooted("trust", "revoke", "node9", status=2)


# A shell makes it of a variable that is not set: it would be every key, or this machine.
@pytest.mark.parametrize(
    "words",
    [
        ("trust", "revoke", "node1", "--root-key", "root.key", "--key", ""),
        ("trust", "revoke", "node1", "--root-key", "root.key", "--from", ""),
        ("trust", "rotate", "--root-key", ""),
        ("policy", "set", "--lease-term-max", "10s", "--root-key", ""),
        ("leave", ".", "--node", ""),
    ],
)
def test_empty_value_is_refused_and_changes_nothing(say: Say, words: tuple[str, ...]) -> None:
    before = tree(say.site.root)
    say(*words, status=2)
    assert f"{words[-2]} is given an empty value" in say.err
    assert tree(say.site.root) == before


def test_keys_that_are_all_elsewhere_are_not_said_to_be_rotated(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in say.site.node_dir().glob("*.key"):
        key.rename(tmp_path / key.name)
    monkeypatch.setenv(CREDENTIALS, str(tmp_path))
    number = say.site.registers.newest().trust
    say.rooted("trust", "rotate", status=2)
    assert "[no-keys-here]" in say.err
    assert say.site.registers.newest().trust == number


def test_key_of_another_cluster_changes_nothing(say: Say, tmp_path: Path) -> None:
    save_private_key(tmp_path / "other.key", Signer(b"8" * 32))
    say("trust", "revoke", "node1", "--root-key", str(tmp_path / "other.key"), status=77)
    say("trust", "rotate", "--root-key", str(tmp_path / "other.key"), status=77)
    assert all("revoked_from_ns" not in key for key in say.listed())


@pytest.mark.parametrize("name", ["time.key", "witness-2.key", "tls.key", "root.key"])
def test_no_online_keys_are_made_from_a_key_for_something_else(say: Say, tmp_path: Path, name: str) -> None:
    out = tmp_path / "online"
    (tmp_path / "keys").mkdir()
    for file, status in ((tmp_path / "keys" / name, 2), (tmp_path / "keys" / "time-server.key", 0)):
        save_private_key(file, Signer(b"8" * 32))
        say("trust", "delegate", "--roughtime-key", str(file), "--out", str(out), on_site=False, status=status)
        assert out.exists() is (status == 0)


def test_archive_stays_verifiable_after_two_rotations_and_a_revocation(say: Say, tmp_path: Path) -> None:
    root, public = say.site.root, tmp_path / "root.pub"
    public.write_text(public_line(say.site.root_key.public, "root"))
    say("publish", "log", "--lease", "a", stdin=b"with the first keys\n")
    old = shutil.copytree(root, tmp_path / "old")
    say.rooted("trust", "rotate", "--overlap", "0s")
    say("publish", "log", "--lease", "a", stdin=b"with the second keys\n")
    say.rooted("trust", "rotate", "--overlap", "0s")
    say("publish", "log", "--lease", "a", stdin=b"with the third keys\n")
    say("bag", "settle", "log")
    say.rooted("trust", "revoke", "node1")
    # The old copy with the trust records of today, the whole tree of today, and the old copy as it was.
    shutil.copytree(root / "trust", tmp_path / "renewed" / "trust")
    shutil.copytree(old, tmp_path / "renewed", dirs_exist_ok=True)
    for judged in (old, tmp_path / "renewed", root):
        assert main(["audit", str(judged), "--root-key", str(public), "--json"]) == 0
    assert len(say.listed()) == 12
    assert all(key["revoked_from_ns"] for key in say.listed())


# -- the files ---------------------------------------------------------------------------------------------------------


def test_credential_of_the_unit_comes_before_the_file_and_its_group_bits_mean_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, credentials = tmp_path / "node", tmp_path / "credentials"
    place.mkdir()
    credentials.mkdir()
    save_private_key(place / "time.key", Signer(b"1" * 32))
    save_private_key(place / "tls.key", Signer(b"2" * 32))
    save_private_key(credentials / "time.key", Signer(b"3" * 32))
    (credentials / "time.key").chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    assert load_node_key(place, Purpose.TIME).public == Signer(b"3" * 32).public
    assert load_node_key(place, Purpose.TLS).public == Signer(b"2" * 32).public
    for path, mode in ((credentials / "time.key", 0o444), (place / "tls.key", 0o640)):
        path.chmod(mode)
        with pytest.raises(Exception, match="key-mode"):
            load_node_key(place, Purpose(path.stem))


# Cut off between the two steps of taking a key up, a rotation can be repeated, and loses no key.
def test_taking_up_that_was_cut_off_is_repeated(tmp_path: Path) -> None:
    save_private_key(tmp_path / "time.key", Signer(b"1" * 32))
    staged = stage_keys(tmp_path, [Purpose.TIME])[Purpose.TIME]
    assert stage_keys(tmp_path, [Purpose.TIME])[Purpose.TIME].public == staged.public
    os.link(tmp_path / "time-2.key.staged", tmp_path / key_file_name(Purpose.TIME, 2))
    assert load_node_key(tmp_path, Purpose.TIME).public == staged.public
    following = stage_keys(tmp_path, [Purpose.TIME])[Purpose.TIME]
    assert following.public != staged.public
    take_up(tmp_path, [Purpose.TIME])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["time-2.key", "time-3.key", "time.key"]
    assert load_node_key(tmp_path, Purpose.TIME).public == following.public
