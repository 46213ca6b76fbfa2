"""Makes the pictures of the documents from a real cluster or a real copy: look at them before they are kept.

python -m tests.tui.make_pictures live ROOT overview leases       while a demo runs there
python -m tests.tui.make_pictures copy TREE leases bags time
"""

import asyncio
import sys
from pathlib import Path

from timeagent.clock import SystemClock
from tui.app import SCREENS, TopApp
from tui.feed import Feed
from tui.sources.live import LiveSource
from tui.sources.mount import MountLocation
from tui.sources.record import RecordSource

PICTURES = Path(__file__).parents[2] / "docs/pictures"
SIZE = (120, 30)
WIDE = {"findings": (178, 30), "replay": (150, 30)}
"""Terminals in which the longest line is shown whole."""
MORE = {"bags": ("left", "left", "left", "left"), "leases": ("j", "j"), "replay": ("5", "t")}
"""Keys that bring what is worth a picture under the cursor."""


async def make(source: LiveSource | RecordSource, names: list[str]) -> None:
    app = TopApp(Feed(source, SystemClock()))
    async with app.run_test(size=SIZE) as pilot:
        while app.state is None or not app.state.cluster_id:
            await pilot.pause(0.1)
        await pilot.pause(2)
        for name in names:
            await pilot.resize_terminal(*WIDE.get(name, SIZE))
            await pilot.press(next(entry.key for entry in SCREENS if entry.name == name))
            await pilot.press(*MORE.get(name, ()))
            await pilot.pause(2)
            (PICTURES / f"top-{name}.svg").write_text(app.export_screenshot(), encoding="utf-8")


def main() -> None:
    kind, path, *names = sys.argv[1:]
    clock = SystemClock()
    live = LiveSource(MountLocation(Path(path), allow_root=True), clock)
    asyncio.run(make(live if kind == "live" else RecordSource(Path(path), clock), names))


if __name__ == "__main__":
    main()
