"""Holders in processes of their own, which say themselves whether they have kept their leases."""

from __future__ import annotations

import json
import random
import subprocess
from threading import Condition, Thread
from typing import TYPE_CHECKING, Self

from appliance.formats.policy import Policy, check_policy
from tests.support import holder
from tests.support.cluster import fast_policy
from tests.support.warm import WarmProcess
from timeagent.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.daemons import Daemons
    from timeagent.units import Span

PATIENCE_S = 120


def patient_policy(path: Path, term_ns: Span = 30 * SECOND) -> Policy:
    """Return one for a site, by which leases outlive a daemon for as long as a busy machine takes to start another."""
    numbers = {
        "lease_term_max_ns": term_ns,
        "renew_period_ns": SECOND,
        "attempt_timeout_ns": SECOND,
        "ceiling_ahead_ns": 2 * SECOND,
        "ceiling_period_ns": SECOND,
    }
    fast = fast_policy(random.Random(str(path)).randbytes(16))
    return check_policy(Policy(**{name: numbers.get(name, getattr(fast, name)) for name in fast.__struct_fields__}))


class Holder:
    """One holder of one domain. Close it: it gives the lease back."""

    def __init__(self, daemons: Daemons, node: str, domain: str) -> None:
        site = daemons.site
        words = [str(site.root), str(site.node_dir(node)), domain]
        self.domain = domain
        self.fence = 0
        self.expiry_ns = 0
        self.end = ""
        """How it ended: ``kept``, or why it was lost."""
        self._log = site.node_dir(node) / f"holder-{domain}.log"
        self._changed = Condition()
        with self._log.open("ab") as log:
            self._process = WarmProcess(
                holder.__name__, words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._changed:
                self.fence = said.get("held", self.fence)
                self.expiry_ns = said.get("expiry", self.expiry_ns)
                self.end = said.get("lost", "kept" if "kept" in said else self.end)
                self._changed.notify_all()
        with self._changed:
            self.end = self.end or f"ended: {self._log.read_text()}"
            self._changed.notify_all()

    def renewed(self) -> Self:
        """Wait until it has it, and it is renewed once more."""
        with self._changed:
            before = self.expiry_ns
            self._changed.wait_for(lambda: self.end or self.expiry_ns > before, PATIENCE_S)
            assert self.expiry_ns > before, f"{self.domain}: {self.end or 'not renewed'}"
        return self

    def lost(self) -> str:
        """Wait until it is lost; return why."""
        with self._changed:
            self._changed.wait_for(lambda: self.end, PATIENCE_S)
        return self.end

    def close(self) -> str:
        """Have it give the lease back; return how it ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._listener.join(PATIENCE_S)
        return self.end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._listener.join(PATIENCE_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
