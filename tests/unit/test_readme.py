"""What README.md shows is run: its program, and its commands."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.formats.birth import decode_marker
from appliance.node.runtime import default_directory
from appliance.node.settings import load_settings
from tenure.__main__ import FAMILIES
from tests.support.cluster import Site
from tests.support.documents import blocks, run_program

_PLACE = "/tmp/bags"


def commands(text: str) -> list[list[str]]:
    """Every ``tenure ...`` in the shell blocks: pipes apart, comments and variables of the line left out."""
    found = []
    for line in "".join(blocks(text, "sh")).splitlines():
        for part in re.split(r"\||&&|;", line):
            words = shlex.split(part, comments=True)
            if words[:2] == ["sudo", "-u"]:
                words = words[3:]
            for place, word in enumerate(words):
                if Path(word).name == "tenure":
                    found.append(words[place + 1 :])
                    break
    return found


def parse(words: list[str]) -> argparse.Namespace:
    """Parse a command as the entry does. SystemExit if it does not parse."""
    family = importlib.import_module(FAMILIES[words[0]][0])
    parser = argparse.ArgumentParser(prog=words[0])
    family.COMMANDS[words[0]].add_arguments(parser)
    return parser.parse_args(words[1:])


@pytest.fixture
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text(encoding="utf-8")


def test_every_command_shown_parses(readme: str) -> None:
    shown = commands(readme)
    assert len(shown) >= 4
    for words in shown:
        assert words[0] in FAMILIES, words
        parse(words)


def test_command_that_does_not_parse_would_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    shown = commands("```sh\necho x | .venv/bin/tenure publish log --leese a  # comment\n```\n")
    assert shown == [["publish", "log", "--leese", "a"]]
    with pytest.raises(SystemExit):
        parse(shown[0])


def test_program_for_asyncio_publishes_and_loses_nothing(readme: str, site: Site, tmp_path: Path) -> None:
    program = blocks(readme, "python")[1]
    assert "import asyncio" in program
    assert run_program(program, _PLACE, site, tmp_path) == "Committed()\n"
    (payload,) = re.findall(r"publish\(.*?b\"(.+?)\"", program)
    with site.open() as cluster:
        (log,) = cluster.log_names()
        assert [message.payload.decode() for message in cluster.read(log, level="latest")] == [payload]


def test_program_with_a_view_counts_what_is_settled(repository: Path, site: Site, tmp_path: Path) -> None:
    (program,) = blocks((repository / "docs/protocol/views.md").read_text(encoding="utf-8"), "python")
    with site.open() as cluster, cluster.session("test") as session:
        with session.acquire("account/7") as leases:
            session.publish("ledger", [b"a", b"b"], under=leases)
        cluster.settle("ledger", cluster.time.now().latest)
    assert run_program(program, "/srv/tenure", site, tmp_path) == "2\n"


def test_program_shown_publishes_and_reads_in_a_fresh_cluster(readme: str, site: Site, tmp_path: Path) -> None:
    program = blocks(readme, "python")[0]
    statements = [line for line in program.splitlines() if line.strip()]
    assert len(statements) <= 6, "a program of five lines, and its import"
    said = run_program(program, _PLACE, site, tmp_path)
    (payload,) = re.findall(r"publish\(.*?b\"(.+?)\"", program)
    assert payload in said
    with site.open() as cluster:
        (log,) = cluster.log_names()
        assert [message.payload.decode() for message in cluster.read(log, level="latest")] == [payload]


def test_first_five_minutes_run_as_shown(readme: str, tmp_path: Path) -> None:
    """The shell block that begins with a new root, with the place and the superuser changed, run by a shell."""
    block = next(block for block in blocks(readme, "sh") if "tenure init" in block)
    root, home = tmp_path / "bags", tmp_path / "home"
    home.mkdir()
    script = block.replace(_PLACE, str(root)).replace(".venv/bin/tenure", "tenure")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "tenure").write_text(
        f"#!/bin/sh\ncase $1 in audit|explain|top|time) ;; *) root=--allow-root ;; esac\n"
        f'exec {shlex.quote(sys.executable)} -m tenure "$@" $root\n'
    )
    (tools / "tenure").chmod(0o755)
    done = subprocess.run(
        ["sh", "-eu", "-c", f"root=; export root; {script}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=tmp_path,
        env={
            **os.environ,
            "HOME": str(home),
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    for marker in tmp_path.glob("bags/TENURE"):
        cluster_id = decode_marker(marker.read_bytes(), str(marker)).cluster_id
        for settings in home.rglob("node.toml"):
            shutil.rmtree(default_directory(cluster_id, load_settings(settings.parent).node), ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "credit 5" in done.stdout
