"""The audit at scale, as ratios in one run: to hashing, to merging, to a signature per message; how it grows.

Run it as a script: ``python tests/bench/bench_audit.py [--messages N ...] [--message-bytes N] [--json]``; SHORT=1 in
the environment asks for a look instead of a measurement. Every program is measured by itself: its processor time, the
kernel's for it, and its largest memory; contenders take turns; reported are medians over the rounds. The trees come
from ``tests.bench.corpus``: ten messages under each witness, with planted breaches, all of which have to be found.

The anchor is OpenSSL's SHA-256 of the same files, read and hashed in this process: ``sha256sum`` of some distributions
uses no SHA instructions, and takes four times as long. ``sort -m`` merges the same messages as lines of text, one file
per writer, by their timestamps. What several processes are worth is the processor time of one over that of the busiest
of two, with what only one of them can do. Growth is what each further message costs in the largest tree, over what it
costs in the one before: the start of Python and what an audit costs once are in neither.

The bank's tree has one message in a frame, under five witnesses: sets of leases, shared modes, session leases. It is
measured beside the others, a message and a witness that a frame carries.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from appliance.formats.framing import open_frame, pieces  # noqa: E402 - a script finds the repository first
from appliance.formats.paths import LOGS  # noqa: E402
from tests.bench.corpus.build import build, build_bank  # noqa: E402
from tests.bench.corpus.story import MESSAGES  # noqa: E402
from timeagent.keys import Signer  # noqa: E402

SHORT: Final = os.environ.get("SHORT") == "1"
SIZES: Final = (10_000, 50_000, 100_000) if SHORT else (10_000, 100_000, 1_000_000)
BANK_MESSAGES: Final = 10_000 if SHORT else 100_000
BANK_WITNESSES: Final = 5
"""That each frame of the bank carries."""
ROUNDS: Final = 1 if SHORT else 3
PLANTED: Final = {"r1-breach": 2, "forged-witness": 2, "grant-overlap": 2, "count-mismatch": 2}
LIMITS: Final = {
    "to_openssl": ("<=", 6.0),
    "to_sort_m": ("<=", 1.0),
    "signature_per_message": (">=", 100.0),
    "growth": ("<=", 1.5),
    "bank_us_per_message": ("<=", 60.0),
    "two_processes": (">=", 1.6),
    "memory_mb": ("<=", 600.0),
}


def measured(*command: str | Path, good: tuple[int, ...] = (0,)) -> tuple[float, float, bytes]:
    """Run a program; return seconds of processor time, its own and its children's, its largest memory in MB, stdout."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([str(part) for part in command], stdout=out, env={**os.environ, "LC_ALL": "C"})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode in good, f"{command[:3]} ended with {process.returncode}"
        out.seek(0)
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out.read()


def audited(tree: Path, *more: str) -> tuple[float, float, dict[str, int]]:
    """Audit a tree in one process: seconds, memory in MB, findings by code."""
    tenure = Path(sys.executable).with_name("tenure")
    spent, memory, out = measured(tenure, "audit", tree, "--json", "--jobs", "1", *more, good=(0, 1, 3))
    found: dict[str, int] = {}
    for finding in json.loads(out)["findings"]:
        found[finding["code"]] = found.get(finding["code"], 0) + 1
    return spent, memory, found


def parallel(tree: Path) -> float:
    """Return how much sooner two processes are through than one, by processor time: the machine may be busy."""
    script = (
        "import os, sys, pathlib\n"
        "from auditor.audit import Options, audit\n"
        "from auditor.evidence.tree import Tree\n"
        "for jobs in (1, 2):\n"
        "    before = os.times()\n"
        "    audit(Tree(pathlib.Path(sys.argv[1])), options=Options(jobs=jobs))\n"
        "    after = os.times()\n"
        "    print(after.user + after.system - before.user - before.system,\n"
        "          after.children_user + after.children_system - before.children_user - before.children_system)\n"
    )
    _, _, out = measured(sys.executable, "-c", script, tree)
    (one, _), (parent, children) = (map(float, line.split()) for line in out.decode().splitlines())
    return one / (parent + children / 2)


def as_text(tree: Path, place: Path) -> list[Path]:
    """Write every message as a line, its timestamp first, one sorted file per writer."""
    place.mkdir()
    files: dict[str, list[str]] = {}
    for path in sorted((tree / LOGS).rglob("*.log")):
        lines = files.setdefault(".".join(path.name.split(".")[:2]), [])
        for piece in pieces(path.read_bytes())[0]:
            frame = open_frame(piece, "")
            for instant, payload in zip(frame.timestamps.tolist(), frame.payloads(), strict=True):
                lines.append(f"{instant:020d} {frame.head.writer} {payload.decode()}\n")
    for name, lines in files.items():
        (place / name).write_text("".join(lines))
    return sorted(place.iterdir())


def hashing(tree: Path) -> float:
    """Return seconds of processor time for hashing alone, of what an audit of a tree of these bytes has to hash.

    Every piece for its digest; the leaves and nodes over grants and ends in the ledger, and once more over the
    witnesses that frames carry.
    """
    files = [path.read_bytes() for path in tree.rglob("*") if path.is_file()]
    frames = [piece for path in (tree / LOGS).rglob("*.log") for piece in pieces(path.read_bytes())[0]]
    begin = time.process_time()
    for data in files:
        hashlib.sha256(data).digest()
    entry, node = bytes(260), bytes(65)
    for _ in range(3 * len(frames)):
        hashlib.sha256(entry).digest()
        hashlib.sha256(node).digest()
    return time.process_time() - begin


def signature() -> float:
    """Return seconds of processor time for one verification."""
    signer = Signer(bytes(32))
    key, payload = signer.verifier(), b"x" * 200
    signed = signer.sign("bench", payload)
    begin = time.process_time()
    count = 500 if SHORT else 5_000
    assert all(key.verifies("bench", payload, signed) for _ in range(count))
    return (time.process_time() - begin) / count


def grown(spent: dict[int, float]) -> float:
    """Return what a further message costs, from the second largest tree to the largest, to the same one size below.

    ``spent``: seconds by messages, of three sizes at least.
    """
    few, some, many = sorted(spent)[-3:]
    return (spent[many] - spent[some]) / (many - some) / ((spent[some] - spent[few]) / (some - few))


def run(directory: Path, sizes: tuple[int, ...], message_bytes: int) -> dict[str, float]:
    """Return everything measured."""
    found: dict[str, float] = {}
    total: dict[int, float] = {}
    for messages in sizes:
        tree = directory / "tree"
        planted = PLANTED if messages >= 50_000 else {}
        made = build(tree, messages, message_bytes=message_bytes, plant=planted)
        rounds = ROUNDS if messages < 10**6 else 1
        spent, memory, codes = zip(*(audited(tree) for _ in range(rounds)), strict=True)
        assert all(each == planted for each in codes), f"{codes[0]} was found, {planted} was planted"
        total[made] = statistics.median(spent)
        found[f"us_per_message_{messages}"] = total[made] / made * 1e6
        found[f"us_per_witness_{messages}"] = total[made] / made * 1e6 * MESSAGES
        found["memory_mb"] = max(memory)
        if messages == max(sizes):
            found |= against(tree, directory, total[made], made, rounds)
        shutil.rmtree(tree)
    if len(total) > 2:
        found["growth"] = grown(total)
    return found | of_the_bank(directory / "bank", message_bytes)


def of_the_bank(tree: Path, message_bytes: int) -> dict[str, float]:
    """Return what the audit of a tree of the bank costs."""
    made = build_bank(tree, BANK_MESSAGES, message_bytes=message_bytes)
    files = [path for path in tree.rglob("*") if path.is_file() and path.stat().st_size]
    spent, _, codes = zip(*(audited(tree) for _ in range(ROUNDS)), strict=True)
    assert not any(codes), f"{codes[0]} was found in a clean tree"
    hashed = statistics.median(hashed_by_openssl(files) for _ in range(ROUNDS))
    each = statistics.median(spent) / made * 1e6
    shutil.rmtree(tree)
    return {
        "bank_us_per_message": each,
        "bank_us_per_witness": each / BANK_WITNESSES,
        "bank_to_openssl": statistics.median(spent) / hashed,
    }


def hashed_by_openssl(files: list[Path]) -> float:
    """Return seconds of processor time for reading files and hashing them with OpenSSL's SHA-256."""
    begin = time.process_time()
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256").digest()
    return time.process_time() - begin


def against(tree: Path, directory: Path, spent: float, messages: int, rounds: int) -> dict[str, float]:
    """Return the ratios to everything else, on one tree."""
    files = [path for path in tree.rglob("*") if path.is_file() and path.stat().st_size]
    size = sum(path.stat().st_size for path in files)
    text = as_text(tree, directory / "text")
    hashed = statistics.median(hashed_by_openssl(files) for _ in range(rounds))
    merged = statistics.median(
        measured("sort", "-m", "-k1,1", "-o", directory / "merged", *text)[0] for _ in range(rounds)
    )
    unhashed = statistics.median(audited(tree, "--no-payload-hash")[0] for _ in range(rounds))
    shutil.rmtree(directory / "text")
    (directory / "merged").unlink()
    return {
        "bytes_per_message": size / messages,
        "openssl_mb_per_second": size / hashed / 1e6,
        "to_openssl": spent / hashed,
        "unhashed_to_openssl": unhashed / hashed,
        "to_sort_m": spent / merged,
        "hashing_alone_to_openssl": statistics.median(hashing(tree) for _ in range(rounds)) / hashed,
        "signature_per_message": signature() * messages / spent,
        "two_processes": statistics.median(parallel(tree) for _ in range(rounds)),
    }


def missed(found: dict[str, float]) -> list[str]:
    """Return the names of what is outside its limit."""
    judged = {name: limit for name, limit in LIMITS.items() if name in found}
    return [
        name for name, (sign, limit) in judged.items() if (found[name] > limit if sign == "<=" else found[name] < limit)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=list(SIZES), help="how many, a tree each")
    parser.add_argument("--message-bytes", type=int, default=100)
    parser.add_argument("--directory", type=Path, help="where to write")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        found = run(Path(directory), tuple(sorted(options.messages)), options.message_bytes)
    if options.json:
        print(json.dumps(found, sort_keys=True))
        return 0
    print(f"audit: messages of {options.message_bytes} bytes, ten under each witness; one process unless said")
    for name, value in found.items():
        limit = LIMITS.get(name)
        said = f"   {limit[0]} {limit[1]:g}{'   MISSED' if name in missed(found) else ''}" if limit else ""
        print(f"  {name:28s} {value:10.2f}{said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
