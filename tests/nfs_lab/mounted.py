"""The two clients of a rule, on the kernel's mounts: machines told over the lab's channel, never over the mount."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.nfs_lab.channel import MachineError
from tests.nfs_lab.lab import MOUNT, SERVER, TRUSTING, Lab, each
from tests.nfs_lab.machine import PATIENCE_S
from tests.nfs_lab.rules import RULES, Rule
from tests.nfs_lab.site import await_true
from tests.nfs_lab.two import OWNER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nfs_lab.machine import Machine

UIDS: Final = (OWNER, 1001, 0)
"""Root has the rights of root on this export."""
NUMBERS: Final = itertools.count(1)
ASK: Final = """
import json, socket
with socket.socket(socket.AF_UNIX) as to, to.makefile("rw") as stream:
    to.connect({socket!r})
    stream.write({request!r} + "\\n")
    stream.flush()
    result = json.loads(stream.readline())
"""
CALL_S: Final = 300.0
JITTER_S: Final = 0.012
REPLY_LATE_S: Final = 1.5


def began_program(node: Machine, uid: int) -> tuple[str, int]:
    """Start inside/verbs.py on a node; return its socket and its number there."""
    socket = f"/run/verbs-{next(NUMBERS)}"
    said: list[str] = []
    words = f"/opt/tenure/lab/verbs.py --root {MOUNT} --socket {socket} --uid {uid}"
    number = node.follow(f"exec tenure --program {words}", said.append)
    await_true(lambda: bool(said) or node.ended(number), f"verbs.py on {node.name}")
    if not said:
        raise MachineError(f"verbs.py does not run on {node.name}")
    return socket, int(said[0].split()[1])


class Mounted:
    """A Two, for one round after another."""

    def __init__(self, lab: Lab) -> None:
        """Mount the export on which root is root; start a process for each user on each client."""
        self._lab = lab
        self._nodes = dict(zip("ab", lab.nodes, strict=True))
        each([lambda node=node: self._remount(node) for node in lab.nodes])
        self._sockets = {(who, uid): began_program(self._nodes[who], uid)[0] for who in "ab" for uid in UIDS}
        self._round = ""
        self._random = random.Random(lab.vers)
        self._healed = threading.Event()
        self._back = threading.Event()
        self._serving = threading.Event()
        self._serving.set()
        self._errands: list[threading.Thread] = []

    def _remount(self, node: Machine) -> None:
        node.shell(f"umount {MOUNT} && mount -t nfs -o vers={self._lab.vers} {SERVER}:{TRUSTING} {MOUNT}")

    def begin_round(self) -> None:
        """Give the round directories that nobody has looked at."""
        self._round = f"r{next(NUMBERS)}"
        for name in ("d", "tmp"):
            self.call("a", "ensure_directory", name)

    def end_round(self) -> None:
        """Wait until the network and the server are as they were."""
        for errand in self._errands:
            errand.join()
        self._errands.clear()
        if not self._serving.wait(PATIENCE_S):
            raise MachineError("the server does not come back")
        self._lab.server.shell("sysctl -q fs.leases-enable=0")

    def _errand(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        self._errands.append(thread)
        thread.start()
        return thread

    def _ask(self, node: Machine, socket: str, verb: str, path: str, *rest: object) -> object:
        words = [*rest, f"{self._round}/tmp"] if verb == "publish" else list(rest)
        request = json.dumps({"verb": verb, "path": f"{self._round}/{path}", "rest": words})
        return node.python(ASK.format(socket=socket, request=request), CALL_S)

    def call(self, who: str, verb: str, path: str, *rest: object, uid: int = OWNER) -> object:
        return self._ask(self._nodes[who], self._sockets[who, uid], verb, path, *rest)

    def together(self, *bodies: Callable[[], None]) -> None:
        def late(body: Callable[[], None]) -> None:
            time.sleep(self._random.random() * JITTER_S)
            body()

        each([lambda body=body: late(body) for body in bodies])

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def cut(self, who: str, seconds: float) -> None:
        name = self._nodes[who].name
        self._healed.clear()
        self._lab.cut(SERVER, name)

        def heal() -> None:
            time.sleep(seconds)
            self._healed.set()
            self._lab.heal()

        self._errand(heal)

    def healed(self) -> bool:
        return self._healed.is_set()

    def restart_server(self) -> None:
        self._back.clear()
        self._lab.server.cut_power()

        def restart() -> None:
            self._back.set()
            self._lab.restart(self._lab.server)
            self._serving.set()
            threading.Event().wait()  # a machine dies with the thread that started it

        self._serving.clear()
        threading.Thread(target=restart, daemon=True).start()

    def back(self) -> bool:
        return self._back.is_set()

    def delegate(self) -> None:
        server = self._lab.server
        server.shell("sysctl -q fs.leases-enable=1")
        if self._lab.vers != "3":  # none is given before the grace period is over
            await_true(lambda: "Y" in server.shell("cat /proc/fs/lockd/nlm_end_grace"), "the end of the grace period")

    def chmod(self, path: str, *, writable: bool) -> None:
        directory = path == "d"
        self.call("b", "chmod", path, (0o775 if directory else 0o664) if writable else 0o555 if directory else 0o444)

    def hold(self, path: str, uid: int) -> None:
        self.call("a", "hold", path, uid=uid)

    def write_held(self, path: str, text: str, uid: int) -> str:
        return str(self.call("a", "write_held", path, text, uid=uid))

    def killed(self, verb: str, path: str, *rest: object, cut: float = 0) -> None:
        node = self._nodes["a"]
        socket, number = began_program(node, OWNER)
        if cut:
            self.cut("a", cut)

        def ask() -> None:
            try:
                self._ask(node, socket, verb, path, *rest)
            except MachineError:
                return  # it was killed before it could answer

        asking = self._errand(ask)
        time.sleep(cut / 3 if cut else self._random.random() * 0.06)
        node.shell(f"kill -9 {number}")
        asking.join()
        self.end_round()
        time.sleep(3)

    def lose_reply(self, path: str, text: str) -> tuple[object, bool]:
        lab, node = self._lab, self._nodes["a"]
        before = self.call("a", "links_refused", "")
        said: list[object] = []
        lab.delay(SERVER, node.name, REPLY_LATE_S)
        asking = self._errand(lambda: said.append(self.call("a", "publish", path, text)))
        there = f"test -e {TRUSTING}/{self._round}/{path}"
        await_true(lambda: lab.server.try_shell(there)["code"] == 0, "the link on the server", every_s=0.05)
        lab.cut(SERVER, node.name, one_way=True)
        lab.server.cut_power()
        lab.restart(lab.server)
        lab.heal()
        asking.join()
        return said[0], self.call("a", "links_refused", "") != before

    def clock_difference(self) -> float:
        node = self._nodes["a"]
        node.set_clock(3600)
        try:
            clocks = [self.call("a", verb, "tmp") for verb in ("server_clock", "clock")]
            assert all(isinstance(clock, int) for clock in clocks), clocks
            return (int(str(clocks[0])) - int(str(clocks[1]))) / 1e9
        finally:
            node.set_clock(0)


def play_rules(vers: str, say: Callable[[str], None], rules: tuple[Rule, ...] = RULES) -> dict[str, dict[str, int]]:
    """Play every rule over one version of NFS; return how often each thing was seen, by the rule's title."""
    found: dict[str, dict[str, int]] = {}
    with Lab(2, vers) as lab:
        say(f"NFS {vers}: server and two clients are up")
        two = Mounted(lab)
        for rule in rules:
            seen: Counter[str] = Counter()
            for _ in range(rule.rounds):
                two.begin_round()
                try:
                    seen.update(rule.play(two))
                finally:
                    two.end_round()
            found[rule.title] = dict(seen)
            say(f"NFS {vers}: {rule.title}: {dict(seen)}")
    return found
