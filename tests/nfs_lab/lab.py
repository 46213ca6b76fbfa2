"""A file server and its clients: the machines of a lab, the network between them, and the mount.

The server is the kernel's own (knfsd on ext4, `sync` exports, lease and grace time 10 s), and the clients' clocks
follow it by chrony. ``Lab`` is a context manager; what it started is gone after it, also when the process is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.nfs_lab.channel import MachineError, reach
from tests.nfs_lab.machine import MEMORY_MB, OWN_DISK_BYTES, Machine, Place, accelerator
from tests.nfs_lab.share import make_disk
from tests.nfs_lab.usermode import USERMODE, UsermodeMachine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HERE: Final = Path(__file__).parent
SERVER: Final = "server"
SQUASHED: Final = "/disk/squashed"
TRUSTING: Final = "/disk/trusting"
"""The export without root_squash."""

MOUNT: Final = "/srv/tenure"

INODES: Final = "300000"
"""Of a machine's own disk: the server's holds the export."""

CLIENT_CHRONY: Final = """server 10.77.0.1 iburst minpoll 0 maxpoll 2
maxclockerror 50
makestep 0.02 3
rtcsync
driftfile /var/lib/chrony/drift
"""
SERVER_CHRONY: Final = """local stratum 2
allow 10.77.0.0/24
maxclockerror 50
"""


class Impossible(RuntimeError):
    """This host cannot run virtual machines, or not make their image; the text says what is missing."""


def work_directory() -> Path:
    """Return where images are kept and runs live: NFS_LAB_WORK, or a directory of the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("NFS_LAB_WORK") or cache / "tenure-nfs-lab").absolute()


def sparse(path: Path, size: int) -> None:
    """Make an empty file system in a file."""
    with path.open("wb") as file:
        file.truncate(size)
    options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-N", INODES, "-E", options, str(path)], check=True)


def made_image(work: Path) -> Path:
    """Return the directory of the image; build it if it is not there. Raises Impossible."""
    image = work / "image"
    if (image / "root.ext4").exists() and shutil.which("qemu-system-x86_64"):
        return image
    work.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([HERE / "image" / "build.sh", image], stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise Impossible(done.stderr.strip().rpartition("\n")[2])
    return image


def take_snapshot(image: Path) -> None:
    """Boot a machine once and keep it as it is then, unless that was done: memory in one file, its disk in another."""
    key = json.dumps([accelerator(image), MEMORY_MB, (image / "root.ext4").stat().st_mtime_ns])
    stamp = image / "snapshot.json"
    with (image / "snapshot.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == key:
            return
        stamp.unlink(missing_ok=True)
        new = image / "snapshot.new"
        words = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", "root.ext4", "-F", "raw", new.name]
        subprocess.run(words, check=True, cwd=image)
        run = Path(tempfile.mkdtemp(prefix="snapshot-", dir=image))
        machine = Machine(Place(image, run), "node8", 9)
        sparse(machine.disk, OWN_DISK_BYTES)
        sparse(run / "share.img", 1 << 30)
        machine.start(root=new)
        try:
            machine.wait()
            machine.shell("umount /opt/tenure /disk")
            # Not nfs itself: what a client calls itself to the server is fixed when that is loaded, and must differ.
            machine.shell("modprobe -a sunrpc nfsd; systemctl start rpcbind; sync; echo 3 > /proc/sys/vm/drop_caches")
            machine.monitor("stop")
            machine.monitor("migrate", uri=f"exec:cat > '{image / 'snapshot.state'}'")
            while (status := machine.monitor("query-migrate")["status"]) not in ("completed", "failed"):
                time.sleep(0.1)
            if status == "failed":
                raise MachineError("the snapshot cannot be written")
            machine.monitor("quit")
            while machine.on:
                time.sleep(0.05)
        finally:
            machine.cut_power()
            shutil.rmtree(run)
        shutil.move(new, image / "snapshot.qcow2")
        stamp.write_text(key)


class Lab:
    """Machines ``server``, ``node1``, ``node2``, ..., all of them up and the directory mounted."""

    def __init__(
        self,
        clients: int = 3,
        vers: str = "4.2",
        options: str = "",
        versions: Mapping[str, Path] | None = None,
        given: Sequence[Path] = (),
    ) -> None:
        """Prepare the disks. ``options``: of the mount. Raises Impossible.

        ``versions``: other checkouts, by name. ``given``: files that each machine finds in /opt/tenure/given.
        """
        work = work_directory()
        image = made_image(work)
        self.engine = accelerator(image)
        if self.engine != USERMODE:
            take_snapshot(image)
        self.vers = vers
        self._options = options
        self.run = Path(tempfile.mkdtemp(prefix=f"run-{vers}-", dir=work))
        make_disk(self.run / "share.img", dict(versions or {}), given, self.run)
        place = Place(image, self.run)
        names = [SERVER, *(f"node{number}" for number in range(1, clients + 1))]
        kind = UsermodeMachine if self.engine == USERMODE else Machine
        self.machines = {name: kind(place, name, number) for number, name in enumerate(names, start=1)}
        for machine in self.machines.values():
            sparse(machine.disk, OWN_DISK_BYTES)
        self._cut: set[tuple[str, str]] = set()
        self._delay: dict[tuple[str, str], float] = {}
        self._switch: subprocess.Popen[bytes] | None = None
        self._mounted: dict[str, str] = {}

    @property
    def server(self) -> Machine:
        """The file server."""
        return self.machines[SERVER]

    @property
    def nodes(self) -> list[Machine]:
        """Its clients."""
        return [machine for machine in self.machines.values() if machine.name != SERVER]

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def __enter__(self) -> Self:
        words = ["setpriv", "--pdeathsig", "KILL", sys.executable, str(HERE / "switch.py"), str(self.run)]
        self._switch = subprocess.Popen([*words, *self.machines], stdin=subprocess.DEVNULL)
        try:
            while not (self.run / "rules").exists():
                time.sleep(0.01)
            for machine in self.machines.values():
                machine.start()
            each([machine.wait for machine in self.machines.values()])
            self.serve()
            each([lambda node=node: self.mount(node) for node in self.nodes])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines.values():
            if machine.on:
                machine.cut_power()
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
        if not os.environ.get("NFS_LAB_KEEP"):
            shutil.rmtree(self.run, ignore_errors=True)

    # ------------------------------------------------ server and mount

    def serve(self) -> None:
        """Export, after the server was switched on. What it knew of its clients lies on the exported disk."""
        self.server.write("/etc/chrony/chrony.conf", SERVER_CHRONY)
        self.server.shell(
            f"sysctl -q fs.leases-enable=0; mkdir -p {SQUASHED} {TRUSTING} /disk/nfs; "
            f"chmod 777 {SQUASHED} {TRUSTING}; cp -an /var/lib/nfs/. /disk/nfs/; mount --bind /disk/nfs /var/lib/nfs; "
            "systemctl start chrony rpcbind nfs-server",
            seconds=600,
        )

    def mount(self, node: Machine, export: str = "") -> None:
        """Mount on a machine that was switched on; start its chrony, and wait until that knows the time."""
        export = self._mounted[node.name] = export or self._mounted.get(node.name, SQUASHED)
        node.write("/etc/chrony/chrony.conf", CLIENT_CHRONY)
        options = ",".join(filter(None, [f"vers={self.vers}", self._options]))
        node.shell(
            # The state that survives: settings, keys, and what chrony learnt of this clock.
            "mkdir -p /disk/etc /disk/lib /disk/chrony && chown _chrony /disk/chrony && "
            "mount --bind /disk/chrony /var/lib/chrony && "
            "mkdir -p /etc/tenure /var/lib/tenure && mount --bind /disk/etc /etc/tenure && "
            "mount --bind /disk/lib /var/lib/tenure && systemctl restart chrony && "
            f"systemctl start rpcbind rpc-statd && mkdir -p {MOUNT} && "
            f"mount -t nfs -o {options} {SERVER}:{export} {MOUNT}",
            seconds=900,
        )
        node.shell("chronyc -n waitsync 600 0.1 0 1 >/dev/null", seconds=900)

    def restart(self, *machines: Machine, cold: bool = False) -> None:
        """Switch machines on again, the server first. What tenure runs there is somebody else's business."""
        ordered = sorted(machines, key=lambda machine: machine.number)
        for machine in ordered:
            if machine.on:
                machine.cut_power()
            if cold:
                machine.boot()
            else:
                machine.start()
        each([machine.wait for machine in ordered])
        if self.server in ordered:
            self.serve()
        each([lambda node=node: self.mount(node) for node in ordered if node is not self.server])

    def copy_of_export(self, target: Path, export: str = SQUASHED) -> Path:
        """Copy what the export holds, as it is at one instant, to the host; return the directory with it."""
        self.server.shell("sync; fsfreeze -f /disk", seconds=600)
        try:
            subprocess.run(["cp", "--sparse=always", self.server.disk, self.run / "copy.img"], check=True)
        finally:
            self.server.shell("fsfreeze -u /disk", seconds=600)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        inside = export.removeprefix("/disk")
        words = ["debugfs", "-R", f"rdump {inside} {target}", str(self.run / "copy.img")]
        subprocess.run(words, check=True, capture_output=True)
        (self.run / "copy.img").unlink()
        return target / inside.strip("/")

    # ------------------------------------------------ network

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Let no frame pass from one to the other, nor back unless ``one_way``."""
        self._cut |= {(one, other)} if one_way else {(one, other), (other, one)}
        self._tell_rules()

    def delay(self, one: str, other: str, seconds: float) -> None:
        """Let frames from one to the other take that much longer."""
        self._delay[(one, other)] = seconds
        self._tell_rules()

    def heal(self) -> None:
        """End every cut and delay."""
        self._cut.clear()
        self._delay.clear()
        self._tell_rules()

    def _tell_rules(self) -> None:
        delays = [[one, other, seconds] for (one, other), seconds in self._delay.items()]
        with reach(self.run, "rules", socket.SOCK_DGRAM) as rules:
            rules.send(json.dumps({"cut": sorted(self._cut), "delay": delays}).encode())


def each(calls: Iterable[object]) -> None:
    """Make calls at once, each in a thread; raise what the first failing one raises."""
    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(call) for call in calls if callable(call)]:
            future.result()
