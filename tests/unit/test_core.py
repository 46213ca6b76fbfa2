"""The native core: chosen, left out where it cannot be built, and named."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from release import core as building
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


@pytest.mark.parametrize(("value", "status"), [("python", 0), ("rust", 78)])
def test_command_goes_by_the_variable(repository: Path, value: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tenure", "doctor", "--help"],
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


def built(into: Path) -> Path:
    made = building.build(into)
    if made is None:
        pytest.skip("the core cannot be built here: no C compiler, Python.h or openssl/evp.h")
    return made


def test_core_is_left_out_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    assert building.build(tmp_path) is None
    assert not list(tmp_path.rglob("*.so"))


def test_core_is_left_out_without_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(building.REPOSITORY / "native", tmp_path / "native")
    source = tmp_path / "native/core.c"
    source.write_text(source.read_text().replace("<openssl/evp.h>", "<openssl/no-such-header.h>"))
    monkeypatch.setattr(building, "REPOSITORY", tmp_path)
    assert building.build(tmp_path) is None


# One binary for all Pythons from 3.12 on: every symbol of Python in it is of the stable interface.
def test_core_that_was_built_hashes(tmp_path: Path) -> None:
    made = built(tmp_path)
    script = "import importlib.util as u, sys; s = u.spec_from_file_location('tenure._core', sys.argv[1])\n"
    script += "m = u.module_from_spec(s); s.loader.exec_module(m); print(m.sha256(bytes(1000)).hex())"
    done = subprocess.run([sys.executable, "-c", script, made], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(bytes(1000)).hexdigest()


def test_core_compiles_without_a_warning(tmp_path: Path) -> None:
    built(tmp_path)
    assert building.build(tmp_path, ["-Werror", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"]) is not None
