"""Make a tree in bulk: ``python -m tests.bench.corpus DIR --messages N``.

Valid, signed, by the formats' own code, the same bytes from the same arguments: ten messages under each witness, 64
writers on four nodes, thousands of domains, two logs with their bags closed and their racks sealed. ``--packed`` packs
the racks; ``--plant CODE=N`` plants N breaches of a code, each of which the audit must find. ``--bank`` makes a tree of
the bank instead: one message in a frame, five witnesses with each.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from timeagent.console import Progress

from .build import build, build_bank
from .faults import CODES


def _planted(text: str) -> tuple[str, int]:
    code, _, count = text.partition("=")
    if code not in CODES or not (count.isdecimal() and int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not CODE=N with one of {', '.join(CODES)}")
    return code, int(count)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.corpus", description=__doc__)
    parser.add_argument("directory", metavar="DIR", type=Path, help="where to make it: new, or empty")
    parser.add_argument(
        "--messages", metavar="N", type=int, default=100_000, help="how many, at least 10 (%(default)s)"
    )
    parser.add_argument("--message-bytes", metavar="N", type=int, default=100, help="of each message (%(default)s)")
    parser.add_argument("--kind", choices=("log", "maildir"), default="log", help="of the bags (%(default)s)")
    parser.add_argument("--packed", action="store_true", help="pack every sealed rack")
    parser.add_argument("--plant", metavar="CODE=N", type=_planted, action="append", default=[], help="plant breaches")
    parser.add_argument("--bank", action="store_true", help="the bank's story, in bags of kind log, without breaches")
    arguments = parser.parse_args()
    if arguments.bank and (arguments.plant or arguments.packed or arguments.kind != "log"):
        parser.error("the bank's story is told of bags of kind log only, unpacked, and nothing is planted in it")
    place: Path = arguments.directory
    if place.exists() and any(place.iterdir()):
        parser.error(f"{place} is not empty")
    begin = time.perf_counter()
    progress = Progress("corpus", arguments.messages)
    made = (
        build_bank(place, arguments.messages, message_bytes=arguments.message_bytes, progress=progress.show)
        if arguments.bank
        else build(
            place,
            arguments.messages,
            message_bytes=arguments.message_bytes,
            kind=arguments.kind,
            packed=arguments.packed,
            plant=dict(arguments.plant),
            progress=progress.show,
        )
    )
    progress.done()
    spent = time.perf_counter() - begin
    sys.stderr.write(f"{made} messages, {made / spent:,.0f}/s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
