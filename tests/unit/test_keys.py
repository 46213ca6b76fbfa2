import errno
import hashlib
import os
import shutil
import stat
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

from timeagent.canonical import signed_bytes
from timeagent.errors import BadConfiguration, Environment, NotTrusted
from timeagent.keys import (
    Signer,
    Verifier,
    fingerprint,
    key_id,
    load_private_key,
    parse_public_line,
    public_line,
    save_private_key,
)

# RFC 8032, section 7.1, test 1.
RFC_SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
RFC_PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
SIGNER = Signer(bytes(range(32)))


def test_public_half_is_that_of_the_rfc() -> None:
    assert Signer(RFC_SEED).public == RFC_PUBLIC
    assert Signer(RFC_SEED).verifier().id == key_id(RFC_PUBLIC) == hashlib.sha512(b"\xff" + RFC_PUBLIC).digest()[:16]


def test_signature_holds_for_its_key_context_and_payload_only() -> None:
    signature = SIGNER.sign("context", b"payload")
    verifier = SIGNER.verifier()
    assert verifier.verifies("context", b"payload", signature)
    assert not verifier.verifies("contex", b"payload", signature)
    assert not verifier.verifies("context", b"payloa", signature)
    assert not Signer(bytes(32)).verifier().verifies("context", b"payload", signature)


def test_every_flipped_bit_of_a_signature_is_noticed() -> None:
    signature = SIGNER.sign("c", b"p")
    verifier = SIGNER.verifier()
    for bit in range(8 * len(signature)):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not verifier.verifies("c", b"p", bytes(flipped)), bit


@pytest.mark.parametrize("length", [0, 1, 63, 65, 128])
def test_signature_of_another_length_is_no_signature(length: int) -> None:
    assert not SIGNER.verifier().verifies("c", b"p", SIGNER.sign("c", b"p").ljust(length, b"\0")[:length])


@pytest.mark.parametrize("length", [0, 31, 33])
def test_bytes_that_are_no_public_key_are_refused(length: int) -> None:
    with pytest.raises(NotTrusted) as refused:
        Verifier(bytes(length))
    assert refused.value.code == "bad-public-key"


def test_private_key_file_is_read_back_and_only_its_owner_may(tmp_path: Path) -> None:
    path = tmp_path / "time.key"
    save_private_key(path, SIGNER)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_private_key(path).public == SIGNER.public


def test_private_key_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "time.key"
    path.write_bytes(b"mine")
    with pytest.raises(Environment) as refused:
        save_private_key(path, SIGNER)
    assert refused.value.code == "key-exists"
    assert path.read_bytes() == b"mine"


def test_private_key_without_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Environment) as refused:
        save_private_key(tmp_path / "nowhere" / "time.key", SIGNER)
    assert refused.value.code == "key-unwritable"


def test_key_of_another_user_is_told_by_whom_it_has_to_be_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "open", refuse)
    with pytest.raises(BadConfiguration, match=rf"user {os.geteuid()} cannot read .*time\.key: Permission") as refused:
        load_private_key(tmp_path / "time.key")
    assert "has to be that user's, mode 0600" in refused.value.hint


# A part of a key would be in the way of who tries again, as a full disk leaves it, or Ctrl-C.
@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_key_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    def refuse(_: int) -> None:
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises((Environment, KeyboardInterrupt), match=r"No space left|^$"):
            save_private_key(tmp_path / "time.key", SIGNER)
    assert list(tmp_path.iterdir()) == []
    save_private_key(tmp_path / "time.key", SIGNER)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o601])
def test_private_key_that_others_may_touch_is_not_trusted(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "time.key"
    save_private_key(path, SIGNER)
    path.chmod(mode)
    with pytest.raises(NotTrusted) as refused:
        load_private_key(path)
    assert refused.value.code == "key-mode"
    assert f"{mode:04o}" in refused.value.message
    assert f"chmod 600 {path}" in refused.value.hint


def test_missing_private_key_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration) as refused:
        load_private_key(tmp_path / "none")
    assert refused.value.code == "key-unreadable"
    assert "join" in refused.value.hint


EC_KEY = b"""-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgevZzL1gdAFr88hb2
OF/2NxApJCzGCEDdfSp6VQO30hyhRANCAAQRWz+jn65BtOMvdyHKcvjBeBSDZH2r
1RTwjmYSi9R/zpBnuQ4EiMnCqfMPWiZqB4QdbAd0E7oH50VpuZ1P087G
-----END PRIVATE KEY-----
"""


@pytest.mark.parametrize("data", [b"", b"nonsense", SIGNER.to_pem()[:-40], EC_KEY])
def test_file_that_holds_no_ed25519_key_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "time.key"
    path.touch(mode=0o600)
    path.write_bytes(data)
    with pytest.raises(BadConfiguration) as refused:
        load_private_key(path)
    assert refused.value.code == "bad-key-file"
    assert refused.value.message == f"{path} is no Ed25519 private key in PEM (PKCS#8, without a password)"
    assert refused.value.hint


def test_public_line_is_read_back() -> None:
    line = public_line(SIGNER.public, "node-a-time")
    assert line.startswith("ssh-ed25519 AAAA")
    assert line.endswith(" node-a-time")
    assert parse_public_line(line, "a file") == SIGNER.public


RSA_LINE = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7 x"


@pytest.mark.parametrize("line", ["", "ssh-ed25519", "ssh-ed25519 AAAA x", RSA_LINE, "ssh-ed25519 \u00e9", "nonsense"])
def test_line_that_holds_no_ed25519_key_is_refused(line: str) -> None:
    with pytest.raises(BadConfiguration, match="node file") as refused:
        parse_public_line(line, "node file")
    assert refused.value.code == "bad-public-key"


def test_private_key_in_place_of_a_public_one_is_not_told() -> None:
    secret = b64encode(bytes(range(48))).decode()
    with pytest.raises(BadConfiguration) as refused:
        parse_public_line(f"-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----", "root.key")
    assert secret[:8] not in f"{refused.value} {refused.value.hint}"
    assert "root.key" in str(refused.value)


@pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed: its fingerprint not compared"
)
def test_fingerprint_is_what_ssh_keygen_prints(tmp_path: Path) -> None:
    path = tmp_path / "key.pub"
    path.write_text(public_line(SIGNER.public, "x") + "\n")
    printed = subprocess.run(["ssh-keygen", "-lf", path], capture_output=True, text=True, check=True, env=os.environ)
    assert fingerprint(SIGNER.public) in printed.stdout.split()


def test_generated_keys_differ() -> None:
    assert Signer.generate().public != Signer.generate().public


def test_signature_is_over_the_signed_bytes() -> None:
    assert SIGNER.sign("c", b"p") == SIGNER._key.sign(signed_bytes("c", b"p"))
