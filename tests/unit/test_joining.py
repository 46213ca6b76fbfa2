"""Joining without the root key: asked for here, approved where the root key is, each step as often as one likes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.admin.membership import Request, ask, asked, decode_request, prepared, request_path
from appliance.admin.trust import revoke_node
from appliance.bag.posix import PosixStorage
from appliance.formats.names import parse_address
from appliance.node.own_keys import check_own_keys
from appliance.node.settings import load_settings
from tenure.__main__ import main
from tests.support.cluster import Site
from tests.support.values import NOW_NS
from timeagent.errors import Damaged, Environment, NotTrusted
from timeagent.keys import Purpose, Signer, load_private_key, save_private_key
from timeagent.units import DAY

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def joining(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Joining:
    return Joining(site, tmp_path / "beta", capsys)


class Joining:
    """A machine that joins as beta, and the admin."""

    def __init__(self, site: Site, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.site, self.directory, self._capsys = site, directory, capsys
        self.err = ""

    def _run(self, *words: str) -> tuple[int, dict[str, Any]]:
        self._capsys.readouterr()
        status = main([*words, "--json", "--allow-root"])
        out, self.err = self._capsys.readouterr()
        return status, json.loads(out) if out else {}

    def join(self, *words: str) -> tuple[int, dict[str, Any]]:
        where = ["--node", "beta", "--node-dir", str(self.directory), "--wait", "0s"]
        return self._run("join", str(self.site.root), *where, *words)

    def approve(self, *words: str, node: str = "beta") -> tuple[int, dict[str, Any]]:
        where = ["--root", str(self.site.root), "--node-dir", str(self.site.node_dir())]
        return self._run(
            "trust", "approve", node, "--root-key", str(self.site.root_key_file), "--wait", "0s", *where, *words
        )

    def leave(self, *words: str) -> tuple[int, dict[str, Any]]:
        where = ["--node", "beta", "--node-dir", str(self.site.node_dir()), "--no-systemd"]
        return self._run("leave", str(self.site.root), *where, *words)

    def number(self) -> int:
        return self.site.registers.newest().trust


def test_machine_asks_is_let_in_and_goes_on(joining: Joining) -> None:
    before = joining.number()
    assert joining.join("--listen", "127.0.0.8")[0] == 75
    first = joining.err
    assert joining.join("--listen", "127.0.0.8")[0] == 75
    assert joining.err == first, "the same keys, and the same fingerprint"
    assert not (joining.directory / "node.toml").exists()
    status, request = joining.approve()
    assert status == 1
    assert request["fingerprint"] in first
    assert joining.number() == before
    path = request_path("beta")
    asking = PosixStorage(joining.site.root).read(path)
    assert asking is not None
    for _ in range(2):
        PosixStorage(joining.site.root).publish(path, asking, "tmp")  # as if the first time had been cut off
        assert joining.approve("--fingerprint", request["fingerprint"])[0] == 0
        assert joining.number() == before + 1
        assert PosixStorage(joining.site.root).read(path) is None
    for _ in range(2):
        assert joining.join("--listen", "127.0.0.8")[0] == 0
    settings = load_settings(joining.directory)
    check_own_keys(joining.site.registers, settings)
    keys = joining.site.registers.trust(joining.number()).keys
    assert [key.address for key in keys if key.node == "beta" and key.address] == ["127.0.0.8:7420"]
    assert PosixStorage(joining.site.root).read(request_path("beta")) is None


# Whoever can write to the mount can put his own keys in the place of the request: that is what the fingerprint is for.
def test_request_that_was_put_in_its_place_is_not_approved(joining: Joining) -> None:
    joining.join()
    _, request = joining.approve()
    storage = PosixStorage(joining.site.root)
    other = replace(asked(storage, "beta"), publics={purpose: Signer.generate().public for purpose in Purpose})
    storage.unlink(request_path("beta"))
    storage.publish(request_path("beta"), other.encode(), "tmp")
    before = joining.number()
    assert joining.approve("--fingerprint", request["fingerprint"])[0] == 77
    assert "other-request" in joining.err
    assert joining.number() == before
    joining.join()  # puts its own request back
    assert joining.approve("--fingerprint", request["fingerprint"])[0] == 0


def test_name_that_another_machine_has_is_not_given_again(joining: Joining) -> None:
    storage = PosixStorage(joining.site.root)
    taken = load_settings(joining.site.node_dir()).node
    request = prepared(joining.directory, taken, None)
    ask(storage, request)
    assert joining.approve("--fingerprint", request.fingerprint, node=taken)[0] == 77
    assert "node-exists" in joining.err


# Nobody could let it in: it would wait in vain.
def test_name_that_another_machine_has_is_refused_before_anything_is_made(joining: Joining) -> None:
    taken = load_settings(joining.site.node_dir()).node
    for words in (["--node", taken], ["--node", taken, "--wait", "10s"]):
        assert joining.join(*words)[0] == 77
        assert "node-exists" in joining.err
    assert not joining.directory.exists()
    assert PosixStorage(joining.site.root).read(request_path(taken)) is None
    joining.join()  # a directory with keys of another name's request is no more that node's
    assert joining.join("--node", taken)[0] == 77


# Its keys count until the day that was named: it may grant and write for as long.
def test_node_whose_keys_end_some_day_has_not_left_yet(joining: Joining) -> None:
    joining.join()
    joining.approve("--fingerprint", asked(PosixStorage(joining.site.root), "beta").fingerprint)
    assert joining.join()[0] == 0
    registers, key = joining.site.registers, joining.site.root_key
    some_day = time.time_ns() + DAY
    revoke_node(registers, key, "beta", some_day)
    assert joining.leave()[1]["left"] is False
    assert joining.leave("--root-key", str(joining.site.root_key_file))[1]["left"] is True
    ends = {each.revoked_from_ns for each in registers.newest_trust().keys if each.node == "beta"}
    assert max(end or some_day for end in ends) < some_day


def test_node_that_has_left_is_not_in_again_by_the_keys_it_had(joining: Joining) -> None:
    joining.join()
    joining.approve("--fingerprint", asked(PosixStorage(joining.site.root), "beta").fingerprint)
    assert joining.join()[0] == 0
    revoke_node(joining.site.registers, joining.site.root_key, "beta", NOW_NS)
    (joining.directory / "node.toml").unlink()
    assert joining.join()[0] == 77
    assert "trust rotate" in joining.err
    assert not (joining.directory / "node.toml").exists()


def test_node_that_has_left_is_not_said_to_be_in_already(joining: Joining) -> None:
    key = ("--root-key", str(joining.site.root_key_file))
    assert joining.join(*key)[0] == 0
    assert joining.leave(*key)[1]["left"] is True
    assert joining.join()[0] == 77
    assert "trust rotate" in joining.err


# Its daemon would listen nowhere, while the others look for it.
@pytest.mark.parametrize("rooted", [False, True])
def test_node_that_was_let_in_by_an_address_does_not_join_without_it(joining: Joining, *, rooted: bool) -> None:
    key = ("--root-key", str(joining.site.root_key_file)) if rooted else ()
    at = ("--listen", "127.0.0.1:7440")
    assert joining.join(*at)[0] == 75
    joining.approve("--fingerprint", asked(PosixStorage(joining.site.root), "beta").fingerprint)
    for other in ((), ("--listen", "127.0.0.1:7441")):
        assert joining.join(*other, *key)[0] == 2
        assert "127.0.0.1:7440" in joining.err
    assert joining.join(*at, *key)[0] == 0


def test_lost_node_is_not_said_to_have_left_from_a_machine_that_has_not_joined(joining: Joining) -> None:
    where = ("--node-dir", str(joining.directory), "--root-key", str(joining.site.root_key_file))
    number = joining.number()
    assert joining.leave(*where)[0] == 78
    assert "not-joined" in joining.err
    assert joining.number() == number


def test_request_that_cannot_be_put_in_its_place_is_not_waited_for(joining: Joining) -> None:
    (joining.site.root / "tmp" / "join.beta").mkdir(parents=True)
    assert joining.join()[0] == 74
    assert "tmp/join.beta" in joining.err
    assert "asks to join" not in joining.err


def test_nobody_who_did_not_ask_is_approved(joining: Joining) -> None:
    assert joining.approve("--fingerprint", "SHA256:x", node="gamma")[0] == 77
    assert "no-request" in joining.err
    with pytest.raises(NotTrusted):
        asked(PosixStorage(joining.site.root), "gamma")


def test_directory_in_which_another_node_lives_is_refused(joining: Joining) -> None:
    with pytest.raises(Environment) as refused:
        prepared(joining.site.node_dir(), "beta", None)
    assert refused.value.code == "key-exists"


REQUEST = Request(
    "beta",
    {purpose: Signer(bytes([number]) * 32).public for number, purpose in enumerate(Purpose)},
    parse_address("127.0.0.8:7420"),
)


def test_request_is_read_as_it_was_written() -> None:
    read = decode_request(REQUEST.encode(), "beta", "x")
    assert read == REQUEST
    assert read.fingerprint == REQUEST.fingerprint
    assert replace(REQUEST, address=None).fingerprint != REQUEST.fingerprint


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"junk\n",
        REQUEST.encode()[:-3],
        REQUEST.encode() + b"\n",
        REQUEST.encode().replace(b"beta", b"alph"),
        b"".join(REQUEST.encode().splitlines(keepends=True)[1:]),
        REQUEST.encode() * 30,
        REQUEST.encode().replace(b"AAAA", b"BBBB"),
        REQUEST.encode().replace(b"7420", b"74200"),
        REQUEST.encode().replace(b"127", b"\xff27"),
    ],
)
def test_damaged_request_is_refused(wrong: bytes) -> None:
    with pytest.raises(Damaged, match=r"^tmp/join") as refused:
        decode_request(wrong, "beta", "tmp/join.beta")
    assert refused.value.hint == "join again"


@pytest.mark.parametrize("made", [["time"], ["time", "witness", "roughtime"]])
def test_keys_that_a_cut_left_out_are_made_when_it_is_repeated(made: list[str], tmp_path: Path) -> None:
    for purpose in made:
        save_private_key(tmp_path / f"{purpose}.key", Signer.generate())
    first = prepared(tmp_path, "beta", None)
    assert first.publics[Purpose.TIME] == load_private_key(tmp_path / "time.key").public
    assert prepared(tmp_path, "beta", None) == first


def test_node_does_not_listen_where_its_machine_has_no_address(joining: Joining) -> None:
    assert joining.join("--listen", "192.0.2.7")[0] == 2
    assert "192.0.2.7" in joining.err
    assert "0.0.0.0 with --address" in joining.err
