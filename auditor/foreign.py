"""Files that are nobody's, outside of racks and bags: in the root, the registers, the chains, the ledgers, the logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.formats.paths import BIRTH, LOGS, MARKER, TMP, parse_ledger_name, parse_record_name

from .load import foreign_names
from .rules.bags import foreign_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .finding import Finding
    from .load import Tree

REGISTERS: Final = ("policy", "trust", "map")


def check_foreign(tree: Tree) -> Iterator[Finding]:
    """foreign-file: yield one finding for each directory that holds such files."""
    yield from _in(tree, "", lambda name: name == MARKER)
    for register in REGISTERS:
        yield from _in(tree, register, lambda name: parse_record_name(name) is not None)
    for top, ours in (("shards", _is_record), ("ledger", _is_ledger)):
        yield from _in(tree, top, _nothing)
        for map_name in _directories(tree, top):
            yield from _in(tree, f"{top}/{map_name}", _nothing)
            for shard in _directories(tree, f"{top}/{map_name}"):
                yield from _in(tree, f"{top}/{map_name}/{shard}", ours)
    yield from _in(tree, LOGS, _nothing)
    for log in _directories(tree, LOGS):
        yield from _in(tree, f"{LOGS}/{log}", lambda name: name == BIRTH)
        for day in _directories(tree, f"{LOGS}/{log}"):
            if day != TMP:
                yield from _in(tree, f"{LOGS}/{log}/{day}", _nothing)


def _directories(tree: Tree, place: str) -> list[str]:
    return [name for name, is_directory in tree.names(place) if is_directory]


def _in(tree: Tree, place: str, ours: Callable[[str], bool]) -> Iterator[Finding]:
    files = [name for name, is_directory in tree.names(place) if not is_directory]
    barred = {path.rpartition("/")[2] for path in tree.barred(place)}
    yield from foreign_files(place, foreign_names(name for name in files if not ours(name) and name not in barred))


def _nothing(_name: str) -> bool:
    return False


def _is_record(name: str) -> bool:
    return parse_record_name(name) is not None


def _is_ledger(name: str) -> bool:
    return parse_ledger_name(name) is not None or name.endswith(".ledger")  # such a file is read, and judged
