"""Hostile bytes for the part of the native core that reads, every step of it watched (fuzz_read.py): a short run."""

from pathlib import Path

import pytest

from release.core import SANITIZERS
from tests.property.fuzz_read import fuzz
from tests.property.test_core_fuzz import watched
from tests.support.native import altered, loaded, made

FUZZ = "tests.property.fuzz_read"


def test_core_says_of_hostile_bytes_what_the_reference_says(tmp_path: Path) -> None:
    assert 750 < fuzz(loaded(made(tmp_path)), 5_000, 1) < 4_250


@pytest.mark.verify
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(125))
def test_core_that_reads_stays_within_its_memory(seed: int, tmp_path: Path, repository: Path) -> None:
    done = watched(made(tmp_path, SANITIZERS), repository, 80_000, FUZZ, seed)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "80000 inputs" in done.stdout


@pytest.mark.verify
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("12 * count > body", "0"),
        ("if (record.size != shape->model.size)", "if (0)"),
        ("place[0] <= field->records[n].size - place[1]", "1"),
        ("if (used == steps)\n            return 0;", ""),
        ("columns[2].size / DIGEST_BYTES < count", "0"),
        ("instant <= before", "instant < before"),
        ("check.size == 1 ? 0x80 : ", ""),
        ("memcmp(known->node[met], own.node[met], DIGEST_BYTES) != 0", "0"),
        ("if (used != steps)", "if (0)"),
    ],
)
def test_step_outside_or_aside_is_found(old: str, new: str, tmp_path: Path, repository: Path) -> None:
    done = watched(
        made(tmp_path, SANITIZERS, altered(tmp_path / "native", "read.c", old, new)), repository, 20_000, FUZZ
    )
    assert done.returncode != 0
    assert "Sanitizer" in done.stderr or "AssertionError" in done.stderr, done.stderr[-4000:]
