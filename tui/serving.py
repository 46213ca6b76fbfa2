"""``tenure top --serve``: the screens in a browser of this machine, by textual-serve, which is an extra.

Each page runs a program of its own, which looks and changes nothing: docs/decisions/0004-textual-serve.md.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from typing import TYPE_CHECKING, Any, Final

from timeagent.console import say
from timeagent.errors import BadConfiguration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

HOST: Final = "127.0.0.1"


def serve(words: Sequence[str], port: int) -> int:
    """Answer on loopback until Ctrl-C. ``words``: what stands after ``tenure top``. Raises BadConfiguration."""
    try:
        library: Any = importlib.import_module("textual_serve.server")
        web: Any = importlib.import_module("aiohttp.web")
    except ImportError:
        raise BadConfiguration(
            "no-textual-serve",
            "pages are served by textual-serve, which is not installed",
            hint="pip install 'tenure[serve]'",
        ) from None
    command = shlex.join([sys.executable, "-m", "tenure", "top", *words, "--in-browser"])
    server = library.Server(command, host=HOST, port=port, title="tenure top")
    make = server._make_app  # noqa: SLF001 - the library has no other door to what it answers

    async def guarded() -> object:
        application = await make()
        application.middlewares.append(web.middleware(_only_our_pages(web, port)))
        return application

    async def begun(_application: object) -> None:
        say(f"tenure top: {server.public_url} until Ctrl-C")
        sys.stdout.flush()

    server._make_app, server.on_startup, server.initialize_logging = guarded, begun, _quiet  # noqa: SLF001 - as above
    server.serve()
    return 0


def _quiet() -> None:
    """Leave logging as it is."""


def _only_our_pages(web: Any, port: int) -> Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]:  # noqa: ANN401 - an extra
    """Refuse what another site's page asks for: a browser lets it, and it would see the screens."""
    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}

    async def asked(request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:  # noqa: ANN401
        origin = request.headers.get("Origin")
        if request.headers.get("Host") not in hosts or (origin and origin.removeprefix("http://") not in hosts):
            return web.Response(status=403, text="this is for pages of this machine\n")
        return await handler(request)

    return asked
