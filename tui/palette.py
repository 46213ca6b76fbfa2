"""The command palette: every screen and every key of what is seen, by name. Generated from the bindings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Provider

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.command import Hits
    from textual.dom import DOMNode


class ScreenCommands(Provider):
    """The bindings of the screen beneath, as commands."""

    def _commands(self) -> Iterator[tuple[str, str, str]]:
        """Yield (what it does, its key, its action) of each binding; each action once."""
        seen = set()
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.description and active.enabled and not binding.system and binding.action not in seen:
                seen.add(binding.action)
                yield binding.description, self.app.get_key_display(binding), binding.action

    async def discover(self) -> Hits:
        """Yield all commands."""
        for what, key, action in self._commands():
            yield DiscoveryHit(f"{what}  ({key})", partial(self._run, action), help=None)

    async def search(self, query: str) -> Hits:
        """Yield the commands that match."""
        matcher = self.matcher(query)
        for what, key, action in self._commands():
            text = f"{what}  ({key})"
            score = matcher.match(text)
            if score > 0:
                yield Hit(score, matcher.highlight(text), partial(self._run, action))

    async def _run(self, action: str) -> None:
        """Do it where the key would have done it: in what has the focus, or above."""
        place: DOMNode | None = self.screen.focused or self.screen
        while place is not None and not await self.app.run_action(action, place):
            place = place.parent
