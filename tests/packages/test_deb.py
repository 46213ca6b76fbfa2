"""The Debian package on a root that never saw tenure: installed, used, upgraded, removed, purged, without a network.

The data of a cluster, and the settings and keys of its node, are the same bytes after each step.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from release import deb
from tests.support.containers import Root, fresh_root

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed: not a Debian"),
]

DATA = ("/srv/tenure", "/etc/tenure", "/var/lib/tenure")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two packages of one tree, the second newer."""
    place = tmp_path_factory.mktemp("deb")
    tree = place / "tree"
    depends = deb.stage(tree)
    return [deb.pack(tree, depends, revision, place / "out") for revision in ("1", "2")]


@pytest.fixture
def root(packages: list[Path], tmp_path: Path) -> Iterator[Root]:
    made = fresh_root(tmp_path / "machine", packages[0].parent)
    yield made
    made.remove()


def bytes_of(root: Root) -> dict[str, str]:
    """Every file of the cluster and the node, with its mode and a digest of its bytes."""
    found = {}
    for place in DATA:
        base = root.place / "upper" / place.lstrip("/")
        for path in sorted(base.rglob("*")):
            stat = path.lstat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path.relative_to(root.place))] = f"{stat.st_mode:o} {stat.st_uid} {digest}"
    return found


def installed(root: Root, package: Path) -> None:
    root.sh(f"dpkg -i /tmp/given/{package.name}")


def set_up(root: Root) -> None:
    """A cluster with a message, by the installed command alone."""
    root.sh("install -d -o tenure -g tenure -m 2770 /srv/tenure")
    root.as_tenure(
        "tenure init /srv/tenure --node alpha --assume-radius 5ms --no-systemd &&"
        "echo credit 5 | tenure publish ledger --lease account/7 --root /srv/tenure"
    )


def message(root: Root) -> str:
    return root.as_tenure("tenure read ledger --settle --root /srv/tenure").stdout


def test_installed_used_upgraded_removed_purged(root: Root, packages: list[Path]) -> None:
    installed(root, packages[0])
    assert root.sh("id -u tenure").stdout == "742\n"
    assert "commands:" in root.sh("tenure --help").stdout
    set_up(root)
    assert message(root) == "credit 5\n"
    assert root.as_tenure("tenure audit /srv/tenure").returncode == 0
    before = bytes_of(root)
    assert any(name.endswith("witness.key") for name in before)
    assert any(name.endswith("/TENURE") for name in before)

    installed(root, packages[1])
    assert root.sh("dpkg-query -W -f '${Version}' tenure").stdout.endswith("-2")
    assert bytes_of(root) == before
    assert message(root) == "credit 5\n"
    before = bytes_of(root)

    root.sh("dpkg -r tenure")
    assert root.sh("command -v tenure; ls -d /opt/tenure /usr/lib/systemd/system/tenure*", check=False).stdout == ""
    assert bytes_of(root) == before

    said = root.sh("dpkg -P tenure")
    assert "settings and keys stay in /etc/tenure" in said.stdout
    assert bytes_of(root) == before

    installed(root, packages[0])
    assert message(root) == "credit 5\n"


# What is compared above is what a postrm that tidies up would take away.
def test_package_that_takes_keys_away_is_found(root: Root, packages: list[Path], tmp_path: Path) -> None:
    installed(root, packages[0])
    set_up(root)
    before = bytes_of(root)
    script = root.place / "upper/var/lib/dpkg/info/tenure.postrm"
    script.write_text(script.read_text().replace("if [ -n", "rm -rf /etc/tenure/*\nif [ -n", 1))
    root.sh("dpkg -P tenure")
    gone = set(before) - set(bytes_of(root))
    assert any(name.endswith("witness.key") for name in gone)
    assert tmp_path.exists()


def test_what_is_installed_is_whole(root: Root, packages: list[Path], repository: Path) -> None:
    installed(root, packages[0])
    assert root.sh("dpkg --verify tenure").stdout == ""
    listed = root.sh("dpkg -L tenure").stdout.splitlines()
    for unit in (repository / "systemd").glob("*@.*"):
        assert f"/usr/lib/systemd/system/{unit.name}" in listed
    for name in (
        "/usr/lib/sysusers.d/tenure.conf",
        "/usr/lib/tmpfiles.d/tenure.conf",
        "/usr/lib/systemd/system-preset/90-tenure.preset",
        "/usr/share/man/man1/tenure-node.1.gz",
        "/usr/share/man/man7/tenure.7.gz",
        "/usr/share/bash-completion/completions/tenure",
        "/usr/share/zsh/vendor-completions/_tenure",
        "/usr/share/fish/vendor_completions.d/tenure.fish",
        "/usr/share/doc/tenure/copyright",
        "/usr/share/tenure/release.json",
    ):
        assert name in listed
    # Used as root, with another user's Python in its way: nothing is written below /opt, nothing of theirs is taken.
    root.sh("mkdir -p /tmp/x && echo 'raise SystemExit(9)' > /tmp/x/tui.py; cd /tmp/x; PYTHONHOME=/x tenure top --help")
    root.sh("for word in demo audit node time trust lease bag view; do tenure $word --help >/dev/null || exit 1; done")
    unlisted = root.sh("find /opt/tenure | sort").stdout.splitlines()
    assert sorted(set(unlisted) - set(listed)) == []


def test_dependencies_are_of_the_system_and_no_more(packages: list[Path]) -> None:
    told = subprocess.run(["dpkg-deb", "-f", packages[0], "Depends"], capture_output=True, text=True, check=True).stdout
    names = {re.split(r"[ (]", each.strip())[0] for each in told.split(",")}
    assert "libc6" in names
    allowed = {"libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libbz2-1.0", "liblzma5", "libffi8", "libuuid1", "python3"}
    assert names - allowed - {"libssl3", "libssl3t64", "libexpat1", "libzstd1"} == set()


# A place of the machine that built it may be anybody's on the machine that runs it, superuser and daemons included.
def test_binaries_look_for_libraries_only_beside_themselves(packages: list[Path]) -> None:
    tree = packages[0].parent.parent / "tree"
    places = [
        (path.name, place)
        for path in deb._elves(tree)
        for places in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", deb.run("readelf", "-d", path))
        for place in places.split(":")
    ]
    assert len(places) > 1
    assert [each for each in places if not each[1].startswith("$ORIGIN")] == []


def test_package_is_the_same_again(packages: list[Path], tmp_path: Path) -> None:
    tree = packages[0].parent.parent / "tree"
    told = subprocess.run(["dpkg-deb", "-f", packages[0], "Depends"], capture_output=True, text=True, check=True).stdout
    again = deb.pack(tree, [each.strip() for each in told.split(",")], "1", tmp_path)
    assert again.read_bytes() == packages[0].read_bytes()
