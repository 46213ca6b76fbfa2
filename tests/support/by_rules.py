"""Has every verdict come from the rules: whatever columns could find clean is suspect."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from auditor.audit import audit
from auditor.evidence.tree import Tree
from auditor.report.formats import json_bytes
from auditor.rules import suspects
from auditor.walk.listed import FrameJudge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from auditor.columns.layout import RowBucket
    from auditor.evidence.signatures import Signatures


@contextmanager
def all_suspect() -> Iterator[None]:
    """Within this, no column finds anything clean."""

    def every_domain(
        entries: RowBucket, uses: RowBucket, _heads: object, _sessions: object, _cluster: object
    ) -> tuple[list[str], int]:
        return [*entries.names.values, *uses.names.values], 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrameJudge, "by_columns", lambda *_: None)
        patch.setattr(suspects, "judge_domains", every_domain)
        yield


def by_rules(root: Path, signatures: Signatures | None = None) -> bytes:
    """Return what the rules alone say of a tree, as JSON."""
    with all_suspect():
        return json_bytes(audit(Tree(root), signatures=signatures))


def by_columns_first(root: Path, signatures: Signatures | None = None) -> bytes:
    """Return what an audit says of a tree, as JSON."""
    return json_bytes(audit(Tree(root), signatures=signatures))
