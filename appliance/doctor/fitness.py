"""Whether a place may hold what others rely on: asked before a cluster is founded there, or a log put there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from timeagent.errors import Environment

from ..bag.roots import Root
from .check import CheckVerdict, HealthCheck
from .directory import Probe, judge_exclusive, judge_linked, judge_listed
from .machine import MOUNTINFO, judge_kind, mount_of, parse_mountinfo
from .store_probe import StoreProbe


def probe_store(address: str, token: str) -> list[HealthCheck]:
    """Try out an object store. ``token``: what no other probe is called. Blocks for some hundred requests.

    Raises Environment, BadConfiguration.
    """
    from ..bag.bucket import RemoteBucket  # noqa: PLC0415 - an extra; and a directory is judged without it

    return StoreProbe([RemoteBucket(address) for _ in range(4)], token).run()


def refuse_unfit(place: Root, token: str) -> None:
    """Raise Environment for a store, or a directory, that does not keep what is asked of it. Blocks; leaves nothing."""
    for check in _tried(place, token) if isinstance(place, Path) else probe_store(place, token):
        if check.verdict is CheckVerdict.FAIL:
            raise Environment("store-unfit", f"{place}: {check.words}", hint=check.way_out)


def _tried(directory: Path, token: str) -> Iterable[HealthCheck]:
    try:
        mount = mount_of(str(directory.resolve()), parse_mountinfo(MOUNTINFO.read_text("utf-8", "replace")))
        with Probe(directory, f"probe.{token}") as probe:
            return [
                *([] if mount is None else [judge_kind(mount)]),
                judge_linked(probe.linked()),
                judge_exclusive(refused=probe.exclusive()),
                judge_listed(listed=probe.listed()),
            ]
    except OSError as problem:
        hint = "make it, or mount it, on every node; tenure doctor says more"
        raise Environment("store-unfit", f"{directory}: {problem.strerror}", hint=hint) from None
