"""The load generator in C: compiled when needed, run once a measurement, and not believed until checked."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from appliance.formats.witness import SignedWitness
from tests.support.values import witness_refused
from timeagent.canonical import decode
from timeagent.errors import Damaged

from .peers import Absent

if TYPE_CHECKING:
    from timeagent.trust import Keyring

SOURCES: Final = Path(__file__).parent / "native"
_RUN_S: Final = 600


class NotBelieved(Exception):
    """What was measured breaks what a lease promises, or proves nothing: no figure may be made of it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement: pairs of acquire and relinquish, or changes of holder, a second.

    ``cpu_us``: the processor time of each, in us: the server's, and a Python client's where one asks alone.
    """

    rate: float
    cpu_us: float
    longest_wait_us: float = 0.0
    mean_wait_us: float = 0.0
    verified: int = 0


def compiled(directory: Path) -> Path:
    """Return the generator, compiled into a directory. Raises Absent without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Absent("no C compiler (gcc, cc) on PATH for the load generator")
    made = directory / "generator"
    words = [compiler, "-O2", "-Wall", "-o", str(made), *map(str, sorted(SOURCES.glob("*.c")))]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    return made


@dataclass(frozen=True, slots=True)
class Generator:
    """Runs the generator against one server after the other; ``keyring`` and ``cluster_id`` judge our witnesses."""

    program: Path
    directory: Path
    keyring: Keyring
    cluster_id: bytes
    warm_ms: int
    run_ms: int

    def run(self, protocol: str, target: str, *pids: int, **settings: object) -> Figure:
        """Measure. Raises NotBelieved: a double holder, a fence that does not grow, a witness that proves nothing."""
        evidence = self.directory / "sample"
        evidence.unlink(missing_ok=True)
        signed = settings.pop("signed", True) is True
        words = [f"{name}={value}" for name, value in settings.items()]
        words += [f"target={target}", f"pids={','.join(map(str, pids))}", f"sample={evidence}"]
        words += [
            f"{name}={value}"
            for name, value in (("warm_ms", self.warm_ms), ("run_ms", self.run_ms))
            if name not in settings
        ]
        done = subprocess.run(
            [str(self.program), protocol, *words], capture_output=True, text=True, timeout=_RUN_S, check=False
        )
        if done.returncode:
            raise NotBelieved(f"{protocol}: {done.stderr.strip()}")
        found = json.loads(done.stdout)
        refuse(protocol, found)
        verified = 0
        if protocol == "lease":
            verified = verify(evidence.read_bytes(), self.keyring, self.cluster_id, signed=signed)
            if not verified:
                raise NotBelieved("lease: no witness was sampled")
        contended = int(settings.get("keys", 0)) == 1  # type: ignore[call-overload]
        count = found["changes"] if contended else found["pairs"]
        return Figure(
            count / found["seconds"],
            found["cpu_ns"] / 1000 / max(1, found["pairs"]),
            found["longest_wait_us"],
            found["mean_wait_us"],
            verified,
        )


def refuse(name: str, found: dict[str, Any]) -> None:
    """Raise NotBelieved if what a generator counted rules its figures out."""
    for count, words in (
        ("double_holders", "grants of a key that had a holder"),
        ("fence_faults", "fences that did not grow"),
        ("short", "keys that were to be filled and were not granted"),
        ("faults", f"replies that make no sense ({found['first_fault']!r} first)"),
    ):
        if found[count]:
            raise NotBelieved(f"{name}: {found[count]} {words}")
    if not found["pairs"]:
        raise NotBelieved(f"{name}: nothing was granted and given back")


def verify(data: bytes, keyring: Keyring, cluster_id: bytes, *, signed: bool = True) -> int:
    """Check sampled witnesses, each behind the key that it was given for; return how many. Raises NotBelieved.

    ``signed`` False: everything but the signature, for the server that leaves it out.
    """
    at = count = 0
    while at < len(data):
        name_size = int.from_bytes(data[at : at + 4], "big")
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        name = data[at + 8 : at + 8 + name_size].decode()
        raw = data[at + 8 + name_size : at + 8 + name_size + size]
        at += 8 + name_size + size
        try:
            witness = decode(SignedWitness, raw, "a sampled witness")
            about = witness.witness().domain
            why = witness_refused(witness, keyring, cluster_id)
        except Damaged as problem:
            raise NotBelieved(f"lease: {problem.message}") from None
        if about != name:
            raise NotBelieved(f"lease: the witness for {name} is about {about}")
        if signed and why is not None:
            raise NotBelieved(f"lease: the witness for {name} proves nothing: {why}")
        if not signed and why is None:
            raise NotBelieved("lease: the server that leaves signatures out has signed")
        count += 1
    return count
