"""What an installation puts on the import path: five packages and not a word more."""

import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from release import deb
from timeagent import core

PACKAGES = {"tenure", "tui", "auditor", "appliance", "timeagent"}


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_the_five_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert len(tops) == len(PACKAGES) + 1


def test_wheel_says_that_each_package_is_typed(wheel: zipfile.ZipFile) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


# Templates, schemas and style sheets are code too: without them the command starts and then fails.
def test_wheel_holds_every_file_of_the_packages(wheel: zipfile.ZipFile, repository: Path) -> None:
    here = {
        path.relative_to(repository).as_posix()
        for package in PACKAGES
        for path in (repository / package).rglob("*")
        if path.is_file() and path.suffix in {".py", ".sql", ".tcss", ".typed"}
    }
    assert here <= set(wheel.namelist())


# One binary serves all Pythons from 3.12 on; without a core the wheel is for every machine.
def test_wheel_carries_the_native_core_where_it_can_be_built(wheel: zipfile.ZipFile) -> None:
    has_core = "tenure/_core.abi3.so" in wheel.namelist()
    assert has_core == (core.chosen("") is not None)
    name = Path(str(wheel.filename)).name
    assert ("-cp312-abi3-linux_" in name) == has_core
    assert name.endswith("-py3-none-any.whl") != has_core


# It brings its libcrypto along: neither the library nor a compiler has to be where it is installed.
@pytest.mark.verify
def test_wheel_for_other_machines_brings_its_libcrypto(repository: Path, tmp_path: Path) -> None:
    if core.chosen("") is None:
        pytest.skip("the native core cannot be built here")
    machine, made = platform.machine(), tmp_path / "made"
    command = [sys.executable, "-m", "release.wheels", str(made), "--machine", machine]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(made.glob("tenure-*.tar.gz"))) == 1
    (path,) = made.glob(f"tenure-*-cp312-abi3-manylinux_*_{machine}.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "site")
    look = "from timeagent import core; print(core.native.__file__); print(open('/proc/self/maps').read())"
    environment = {"PYTHONPATH": str(tmp_path / "site"), "TENURE_CORE": "native"}
    seen = subprocess.run(
        [sys.executable, "-c", look], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert seen.startswith(f"{tmp_path}/site/tenure/_core")
    assert f"{tmp_path}/site/tenure.libs/libcrypto" in seen


def test_wheel_installs_one_command(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    lines = wheel.read(name).decode().split("\n")
    assert [line for line in lines if "=" in line] == ["tenure = tenure.script:entry"]


# An __init__.py there would shadow an installed `systemd`, and make `tests` importable by everybody.
@pytest.mark.parametrize("folder", ["systemd", "tests"])
def test_folders_that_are_no_packages_have_no_init(repository: Path, folder: str) -> None:
    assert not list((repository / folder).rglob("__init__.py"))


def test_package_where_its_tools_are_not_names_them(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "release.deb", str(tmp_path / "out")]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "deb: dpkg, dpkg-deb, dpkg-query, readelf: not here; apt install dpkg binutils\n"


# Where gcc-multilib is installed, what ldconfig tells first of a name, and last, is for other kinds of programs.
def test_package_needs_the_libraries_of_programs_of_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path(sys.executable).read_bytes()[:64]
    kinds = {"tree/program": own, "x32/libc.so.6": own[:4] + b"\1" + own[5:], "own/libc.so.6": own}
    kinds["i386/libc.so.6"] = own[:4] + b"\1" + own[5:18] + b"\3\0" + own[20:]
    for name, head in kinds.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(head)
    named = " 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n"
    places = "".join(f"\tlibc.so.6 (libc6) => {tmp_path}/{kind}/libc.so.6\n" for kind in ("x32", "own", "i386"))
    monkeypatch.setattr(deb, "run", lambda tool, *_: named if tool == "readelf" else places)
    monkeypatch.setattr(deb, "_owner", lambda library: library.parent.name)
    assert deb._needed(tmp_path / "tree") == ["own"]


# A document names others by their places beside it, the README first of all.
def test_no_link_of_a_document_is_dead_in_the_debian_package(tmp_path: Path) -> None:
    deb.lay_out_papers(tmp_path)
    documents = tmp_path / deb.DOCUMENTS
    links = [
        (path, target)
        for path in documents.rglob("*.md")
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    ]
    assert (documents / "README.md", "docs/guarantees.md") in links
    assert len(links) > 100
    assert [(path.name, target) for path, target in links if not (path.parent / target).exists()] == []
