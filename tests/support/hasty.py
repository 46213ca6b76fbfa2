"""The command ``tenure``, with a node that waits for nothing: what is sealed is packed at once, and soon deleted.

Run as a script, with the words of ``tenure``. Only how long packers and retention wait is otherwise: with two
minutes and a day nothing would be packed, and nothing deleted, while a test looks on.
"""

from __future__ import annotations

import sys

from appliance.bag import metronome, packer
from appliance.daemon import daemon
from tenure.__main__ import entry
from timeagent.units import MS, SECOND

KEEP_NS = 3 * SECOND
"""What a node keeps whose settings say one day."""


def hurry() -> None:
    """Let this process wait no longer than it must."""
    spans = {"DELAY_NS": 0, "STAGGER_NS": 200 * MS, "RETENTION_PERIOD_NS": SECOND}
    for name, span in spans.items():
        assert hasattr(metronome, name)
        setattr(metronome, name, span)
    for module in (daemon, packer):
        assert hasattr(module, "DAY")
        setattr(module, "DAY", KEEP_NS)  # noqa: B010 - mypy knows of no such name


if __name__ == "__main__":
    hurry()
    sys.exit(entry())
