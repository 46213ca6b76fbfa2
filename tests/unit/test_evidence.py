"""Evidence on disk: bounded, numbered, and never in the way."""

import json
import resource
from pathlib import Path

import pytest

from timeagent.agent.evidence import FILES_MAX, EvidenceFiles


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_records_are_numbered_and_the_oldest_go_first(tmp_path: Path) -> None:
    files = EvidenceFiles(tmp_path / "evidence")
    for number in range(1, FILES_MAX + 3):
        files.keep({"number": number})
    assert names(tmp_path / "evidence") == [f"{number:08d}.json" for number in range(3, FILES_MAX + 3)]
    assert json.loads((tmp_path / "evidence/00000005.json").read_text()) == {"number": 5}


def test_next_run_goes_on_with_the_numbers(tmp_path: Path) -> None:
    EvidenceFiles(tmp_path).keep({})
    EvidenceFiles(tmp_path).keep({})
    assert names(tmp_path) == ["00000001.json", "00000002.json"]


# Time goes on without evidence.
def test_directory_that_cannot_be_written_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    EvidenceFiles(tmp_path / "file" / "evidence").keep({})
    assert "evidence-not-kept" in caplog.text


# Else each failure would leave a name, and the first success delete as much evidence as there are of them.
def test_full_disk_leaves_no_half_of_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, limits = EvidenceFiles(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    files.keep({"number": 1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # a longer file cannot be written
    try:
        for _ in range(3):
            files.keep({"number": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caplog.text.count("evidence-not-kept") == 3
    files.keep({"number": 2})
    assert names(tmp_path) == ["00000001.json", "00000002.json"]
