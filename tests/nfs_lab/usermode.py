"""A machine that is a process of the host: Debian's kernel for user-mode Linux, which needs no emulator.

The same kernel code (NFS, ext4, TCP), systemd and disks as in an emulated machine. Its programs run on the host's
processor as they are: ten to twenty times faster where there is no KVM. What it lacks: a snapshot, so each start is a
boot of seconds; and the kernel is the one of the package, not the one that a machine of iron would run.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from typing import TYPE_CHECKING, Final

from tests.nfs_lab.channel import Channel, MachineError
from tests.nfs_lab.machine import MEMORY_MB, PATIENCE_S, Machine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.nfs_lab.machine import Place


USERMODE: Final = "usermode"


class UsermodeMachine(Machine):
    """As a Machine. Start it from a thread that stays: it dies with the thread."""

    def __init__(self, place: Place, name: str, number: int) -> None:
        """Switch nothing on yet."""
        super().__init__(place, name, number)
        self._stood_still_ns = 0
        self._stopped_at_ns = 0

    def start(self, root: Path | None = None) -> None:
        """Begin to boot. ``root``: not here."""
        assert root is None
        run, image = self._place.run, self._place.image
        self._stood_still_ns = 0
        self._write_stood_still()
        for name in (f"nic-{self.name}", f"cow-{self.name}"):
            (run / name).unlink(missing_ok=True)
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        card = self._card()
        words = [
            *("setpriv", "--pdeathsig", "KILL", str(image / "linux.uml")),
            *(f"mem={MEMORY_MB}M", f"umid=lab-{os.getpid()}-{self.name}", f"uml_dir={run}/"),
            *(f"ubd0=cow-{self.name},{image / 'root.ext4'}", f"ubd1={self.disk.name}", "ubd2rc=share.img"),
            *(
                "root=/dev/ubda",
                "rw",
                "init=/usr/local/sbin/usermode-init",
                "quiet",
                "selinux=0",
                "systemd.show_status=0",
            ),
            *(
                "panic=1",
                f"lab.id={self.number}",
                f"vec0:transport=fd,fd={card.fileno()},mac=52:54:00:77:00:{self.number:02x}",
            ),
            *("con=null", "con0=null,fd:1", "ssl=null", f"ssl0=fd:{its.fileno()},fd:{its.fileno()}"),
        ]
        environment = {
            "PATH": os.environ["PATH"],
            "TMPDIR": "/dev/shm",
            "HOME": str(run),
            "LD_PRELOAD": str(image / "usermode.so"),
            "LD_BIND_NOW": "1",
            "LAB_STOOD_STILL": str(self._stood_still_file),
        }
        with card, its, (run / f"console-{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                words,
                cwd=run,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(card.fileno(), its.fileno()),
                start_new_session=True,
            )
        self._channel = Channel(self.name, ours)

    def boot(self) -> None:
        """Begin to boot: every start is one."""
        self.start()

    def wait(self) -> None:
        """Wait until it answers; mount its disks. Raises MachineError."""
        if not self.channel.awake(PATIENCE_S):
            raise MachineError(f"{self.name} does not come up: {self.last_words()}")
        self.set_clock(0)
        self.mount_disks()

    def stop_with_clocks(self) -> None:
        """Let it stand still with all its clocks."""
        self._stopped_at_ns = time.monotonic_ns()
        self.freeze()

    def go_on(self) -> None:
        """End that."""
        self._stood_still_ns += time.monotonic_ns() - self._stopped_at_ns
        self._write_stood_still()
        self.thaw()

    def _end(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)  # with the programs that it runs

    @property
    def _stood_still_file(self) -> Path:
        return self._place.run / f"stood-still-{self.name}"

    def _write_stood_still(self) -> None:
        with self._stood_still_file.open("r+b" if self._stood_still_file.exists() else "wb") as file:
            file.write(struct.pack("=q", self._stood_still_ns))  # in place: it is mapped

    def _card(self) -> socket.socket:
        """A datagram socket as the switch expects it, by short names: a path of one may have 107 bytes."""
        card = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        directory = os.open(self._place.run, os.O_RDONLY | os.O_DIRECTORY)
        try:
            card.bind(f"/proc/self/fd/{directory}/nic-{self.name}")
            card.connect(f"/proc/self/fd/{directory}/port-{self.name}")
        finally:
            os.close(directory)
        return card
