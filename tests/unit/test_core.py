"""The native core: chosen, left out where it cannot be built, and named."""

import hashlib
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.formats import merkle
from release import core as building
from tests.support.native import altered, loaded, made
from timeagent import core
from timeagent.errors import BadConfiguration


def test_python_is_chosen_by_name_whatever_is_there() -> None:
    assert core.chosen("python") is None


def test_unknown_choice_is_named() -> None:
    with pytest.raises(BadConfiguration) as refused:
        core.chosen("rust")
    assert "'rust'" in refused.value.message
    assert "python" in refused.value.hint


def test_core_that_is_asked_for_and_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenure._core", None)
    assert core.chosen("") is None
    with pytest.raises(BadConfiguration) as refused:
        core.chosen("native")
    assert refused.value.code == "no-core"


def test_people_are_told_why_it_is_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def junk(_: str) -> None:
        raise ImportError("_core.abi3.so: invalid ELF header")

    monkeypatch.setattr(core, "native", None)
    monkeypatch.delenv(core.VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "tenure._core", None)
    assert core.said() == "Python (the native core is not here)"
    monkeypatch.setattr("importlib.import_module", junk)
    assert core.said() == "Python (the native core cannot be loaded: _core.abi3.so: invalid ELF header)"
    with pytest.raises(BadConfiguration, match="invalid ELF header"):
        core.chosen("native")
    monkeypatch.setenv(core.VARIABLE, "python")
    assert core.said() == "Python"


@pytest.mark.parametrize("words", [["doctor", "--help"], ["audit", "--help"], ["replay", "--help"], ["--version"]])
@pytest.mark.parametrize(("value", "status"), [("python", 0), ("rust", 78)])
def test_command_goes_by_the_variable(repository: Path, value: str, status: int, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tenure", *words],
        cwd=repository,
        env={**os.environ, core.VARIABLE: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert ("bad-core" in done.stderr) == bool(status)


def test_version_and_doctor_name_it(repository: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tenure", "--version"],
        cwd=repository,
        env={**os.environ, core.VARIABLE: "python"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.endswith("core: Python\n")


def test_core_is_left_out_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    assert building.build(tmp_path) is None
    assert not list(tmp_path.rglob("*.so"))


def test_core_is_left_out_without_a_header(tmp_path: Path) -> None:
    without = altered(tmp_path / "native", "core.c", "<openssl/evp.h>", "<openssl/no-such-header.h>")
    assert building.build(tmp_path, sources=without) is None


def test_core_that_was_built_hashes(tmp_path: Path) -> None:
    assert loaded(made(tmp_path)).tree([bytes(1000)]) == [[hashlib.sha256(bytes(1001)).digest()]]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 33])
def test_tree_of_the_core_is_that_of_python(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = core.chosen("")
    if native is None:
        pytest.skip("the core is not here")
    leaves = [bytes([n]) * n for n in range(count)]
    monkeypatch.setattr(core, "native", None)
    assert native.tree(leaves) == merkle.tree(leaves)


def test_values_that_are_altered_alike_have_different_marks(tmp_path: Path) -> None:
    told = "(same(known, number, value) || (PyErr_SetNone(PyExc_OverflowError), 0))"
    native = loaded(
        made(tmp_path, sources=altered(tmp_path / "native", "read.c", "same(known, number, value))\n", f"{told})\n"))
    )
    words, high = struct.unpack("<16Q", random.Random(1).randbytes(128)), 1 << 63
    for apart in (1, 2, 4):  # what multiplying by a known number, and shifting, makes of a change in the highest bit
        for shift in range(1, 64):
            changes = [(n, n + apart) for n in range(8)]
            values = {struct.pack("<16Q", *words)}
            for one, other in changes:
                values.add(
                    struct.pack(
                        "<16Q",
                        *(w ^ high * (n in (one, other)) ^ (high >> shift) * (n == other) for n, w in enumerate(words)),
                    )
                )
            assert native.distinct(sorted(values), bytes(4 * len(values)), [struct.pack("=ii", 0, 128)])[2] == sorted(
                values
            )


def test_core_compiles_without_a_warning(tmp_path: Path) -> None:
    if building.build(tmp_path, ["-Werror", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"]) is None:
        made(tmp_path)
        pytest.fail("it compiles, and not without a warning")
