"""One virtual machine: switched on, asked, disturbed, switched off.

Machines go on from one snapshot, taken once with the agent up: seconds, also under emulation. Then each gets its own
name, address, clock, random numbers and boot id. A cold boot is there too. The system's disk forgets everything when a
machine is switched off; its second disk is its own and stays; the third is the host's, read-only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.nfs_lab.channel import Channel, MachineError, reach

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY_MB: Final = 512
OWN_DISK_BYTES: Final = 512 << 20
PATIENCE_S: Final = 900.0
"""How long a machine may take to come up: emulated, on a host that is busy with other things."""

RESEED: Final = 0x5207
"""The ioctl RNDRESEEDCRNG."""

KERNEL_WORDS: Final = (
    "rw console=ttyS0 quiet mitigations=off nopti tsc=reliable random.trust_cpu=on no_timer_check panic=-1 "
    "net.ifnames=0 systemd.show_status=0 rcupdate.rcu_cpu_stall_suppress=1"
)


def accelerator(image: Path) -> str:
    """Return what runs the machines: kvm, usermode (processes of the host) or tcg (emulation).

    kvm only where Debian's kernel runs under it: the device and the processor's own flag.

    A host that virtualises without the processor's help may have a /dev/kvm in which an ordinary kernel hangs.
    NFS_LAB_ACCELERATOR says otherwise.
    """
    if wanted := os.environ.get("NFS_LAB_ACCELERATOR"):
        return wanted
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    usable = os.access("/dev/kvm", os.R_OK | os.W_OK) and (" vmx" in flags or " svm" in flags)
    if usable:
        return "kvm"
    return "usermode" if (image / "linux.uml").exists() and (image / "usermode.so").exists() else "tcg"


def drive(file: Path, name: str, form: str = "raw", *, forgets: bool = False) -> list[str]:
    """Words of the emulator for one disk."""
    place = str(file).replace(",", ",,")
    snapshot = "on" if forgets else "off"
    return [
        *("-drive", f"file={place},format={form},if=none,id={name},snapshot={snapshot},cache=writeback"),
        *("-device", f"virtio-blk-pci,drive={name},serial={name}"),
    ]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the files of one lab are."""

    image: Path
    """What ``image/build.sh`` made, and the snapshot."""
    run: Path
    """Sockets, disks and logs of this run."""


class Machine:
    """A machine that can be switched on. Start it from a thread that stays: it dies with the thread."""

    def __init__(self, place: Place, name: str, number: int) -> None:
        """Switch nothing on yet."""
        self.name = name
        self.number = number
        self.address = f"10.77.0.{number}"
        self.cuts = 0
        """How often its power was cut."""
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._from_snapshot = False

    # ------------------------------------------------ on and off

    def start(self, root: Path | None = None) -> None:
        """Begin to switch on, from the snapshot, or ``root``: boot that system for real, and let it remember."""
        self._launch(root or self._place.image / "snapshot.qcow2", forgets=root is None, resume=root is None)

    def boot(self) -> None:
        """Begin to switch on by a cold boot."""
        self._launch(self._place.image / "snapshot.qcow2", forgets=True, resume=False)

    def _launch(self, root: Path, *, forgets: bool, resume: bool) -> None:
        run, image = self._place.run, self._place.image
        for name in ("nic", "agent", "monitor"):
            (run / f"{name}-{self.name}").unlink(missing_ok=True)
        engine = {"kvm": ["-M", "q35,accel=kvm", "-cpu", "host"]}.get(
            accelerator(image), ["-M", "q35", "-accel", "tcg,tb-size=128", "-cpu", "max"]
        )
        ends = f"local.type=unix,local.path=nic-{self.name},remote.type=unix,remote.path=port-{self.name}"
        words = [
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"),
            *("-name", self.name, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-m", str(MEMORY_MB), "-smp", "1", *engine),
            *("-kernel", str(image / "kernel"), "-initrd", str(image / "initrd.img")),
            *("-append", f"{KERNEL_WORDS} lab.id={self.number}"),
            *drive(root, "root", "qcow2", forgets=forgets),
            *("-netdev", f"dgram,id=net0,{ends}"),
            *("-device", f"virtio-net-pci,netdev=net0,mac=52:54:00:77:00:{self.number:02x},romfile="),
            *("-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,path=agent-{self.name},server=on,wait=off"),
            *("-device", "virtserialport,chardev=agent,name=lab.agent", "-device", "virtio-rng-pci"),
            *("-qmp", f"unix:monitor-{self.name},server=on,wait=off", "-serial", f"file:console-{self.name}.log"),
            *drive(self.disk, "own"),
            *drive(run / "share.img", "share", forgets=True),
        ]
        if resume:
            words += ["-incoming", f"exec:cat {shlex.quote(str(image / 'snapshot.state'))}"]
        self._from_snapshot = resume
        with (run / f"emulator-{self.name}.log").open("ab") as log:
            environment = {**os.environ, "TMPDIR": str(run)}  # what a disk forgets lies there meanwhile
            # A session of its own: an interrupt from the keyboard is for the lab, which then switches machines off.
            self._process = subprocess.Popen(
                words,
                cwd=run,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._channel = None

    @property
    def disk(self) -> Path:
        """Its own disk."""
        return self._place.run / f"own-{self.name}.img"

    @property
    def on(self) -> bool:
        """Whether it is switched on."""
        return self._process is not None and self._process.poll() is None

    def wait(self) -> None:
        """Wait until it answers; give it an identity. Raises MachineError."""
        until = time.monotonic() + PATIENCE_S
        if self._from_snapshot:
            while self.monitor("query-status")["status"] == "inmigrate":
                time.sleep(0.05)
            self.monitor("cont")
        channel = Channel(self.name, self._connected("agent", until))
        self._channel = channel
        if self._from_snapshot:
            # The agent said hello long ago, to nobody.
            channel.answer(channel.ask(sh="true", seconds=PATIENCE_S), PATIENCE_S)
        elif not channel.awake(PATIENCE_S):
            raise MachineError(f"{self.name} does not come up: {self.last_words()}")
        self.set_clock(0)
        if self._from_snapshot:
            seed = os.urandom(64).hex()
            self.python(f"import fcntl; f = open('/dev/urandom', 'wb', 0); f.write(bytes.fromhex('{seed}'))\n"
                        f"fcntl.ioctl(f, {RESEED})")  # fmt: skip
            self.shell(
                f"lab-identity {self.number}; systemctl restart systemd-journald; "
                "blockdev --flushbufs /dev/vdb; blockdev --flushbufs /dev/vdc"
            )
        self.mount_disks()

    def mount_disks(self) -> None:
        """Mount its own disk and the host's. Raises MachineError."""
        self.shell("mount -o ro /dev/vdc /opt/tenure && mkdir -p /disk && mount /dev/vdb /disk")

    def cut_power(self) -> None:
        """Switch off, now. What it had flushed to its own disk is there."""
        assert self._process is not None
        if not self.on:
            return
        self.cuts += 1
        self._end()
        self._process.wait()
        if self._channel is not None:
            self._channel.close()

    def _end(self) -> None:
        assert self._process is not None
        self._process.kill()

    def last_words(self) -> str:
        """What it wrote to its console last, for whom it may help."""
        texts = []
        for name in (f"emulator-{self.name}.log", f"console-{self.name}.log"):
            with contextlib.suppress(OSError):
                texts.append((self._place.run / name).read_text(errors="replace")[-500:])
        return " / ".join(texts)

    # ------------------------------------------------ commands

    @property
    def channel(self) -> Channel:
        """The way to its agent. Raises MachineError when it is switched off."""
        if self._channel is None or not self.on:
            raise MachineError(f"{self.name} is switched off")
        return self._channel

    def try_shell(self, text: str, seconds: float = 120, user: str = "") -> dict[str, Any]:
        """Run shell text; return code, out and err."""
        channel = self.channel
        return channel.answer(channel.ask(sh=text, seconds=seconds, user=user), seconds)

    def shell(self, text: str, seconds: float = 120, user: str = "") -> str:
        """Run shell text; return what it printed. Raises MachineError when it fails."""
        done = self.try_shell(text, seconds, user)
        if done["code"]:
            raise MachineError(f"{self.name}: {text!r} ended with {done['code']}: {done['out']}{done['err']}")
        return str(done["out"])

    def python(self, source: str, seconds: float = 120) -> Any:  # noqa: ANN401 - whatever it left in `result`
        """Run Python of the image, as root; return `result`. Raises MachineError."""
        channel = self.channel
        done = channel.answer(channel.ask(py=source, seconds=seconds), seconds)
        if done["code"]:
            raise MachineError(f"{self.name}: {done['err']}")
        return done.get("result")

    def write(self, path: str, text: str) -> None:
        """Write a file there."""
        self.python(f"open({path!r}, 'w').write({text!r})")

    def follow(self, text: str, listener: Callable[[str], None], user: str = "") -> int:
        """Start shell text and pass on its lines; return the number by which it is known."""
        return self.channel.ask(listener, follow=text, user=user)

    def tell_to_stop(self, number: int) -> None:
        """Close the standard input of what is followed."""
        self.channel.ask(close=number)

    def ended(self, number: int) -> bool:
        """Whether what is followed has ended."""
        return not self.on or self._channel is None or self._channel.answered(number)

    # ------------------------------------------------ disturbances

    def freeze(self) -> None:
        """Let it stand still while its clocks run on: to itself, a long pause."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop_with_clocks(self) -> None:
        """Let it stand still with all its clocks: afterwards they are behind, and nothing inside can tell."""
        self.monitor("stop")

    def go_on(self) -> None:
        """End that."""
        self.monitor("cont")

    def set_clock(self, offset_s: float) -> None:
        """Set its clock to the host's and an offset."""
        self.python(f"time.clock_settime(time.CLOCK_REALTIME, {time.time() + offset_s!r})")

    def monitor(self, command: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        """Ask the emulator. Raises MachineError."""
        connection = self._connected("monitor", time.monotonic() + PATIENCE_S)
        with contextlib.closing(connection), connection.makefile("rw") as stream:
            stream.readline()
            answer: dict[str, Any] = {}
            for request in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                stream.write(json.dumps(request) + "\n")
                stream.flush()
                answer = json.loads(stream.readline())
                while "return" not in answer and "error" not in answer:
                    answer = json.loads(stream.readline())
        if "error" in answer:
            raise MachineError(f"{self.name}: {command}: {answer['error']}")
        return answer["return"]

    def _connected(self, name: str, until: float) -> Any:  # noqa: ANN401 - a socket
        while True:
            if not self.on:
                raise MachineError(f"{self.name} is switched off: {self.last_words()}")
            try:
                return reach(self._place.run, f"{name}-{self.name}")
            except OSError:
                if time.monotonic() > until:
                    raise MachineError(f"{self.name} does not open its {name} socket") from None
                time.sleep(0.05)
