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

    def _commands(self) -> Iterator[tuple[str, DOMNode, str]]:
        """Yield (what it does and its key, where, its action) of each binding; each action once."""
        seen = set()
        for active in self.screen.active_bindings.values():
            binding, name = active.binding, (id(active.node), active.binding.action)
            if binding.description and active.enabled and not binding.system and name not in seen:
                seen.add(name)
                yield f"{binding.description}  ({self.app.get_key_display(binding)})", active.node, binding.action

    async def discover(self) -> Hits:
        """Yield all commands."""
        for text, node, action in self._commands():
            yield DiscoveryHit(text, partial(self.app.run_action, action, node), help=None)

    async def search(self, query: str) -> Hits:
        """Yield the commands that match."""
        matcher = self.matcher(query)
        for text, node, action in self._commands():
            score = matcher.match(text)
            if score > 0:
                yield Hit(score, matcher.highlight(text), partial(self.app.run_action, action, node))
