"""What the tests of a session share: a mount that fails where it is told to, and short words for what is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.cluster import HandSite
from tests.support.storage import WrappedStorage
from timeagent.errors import Environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.bag.ports import Storage
    from appliance.session.asking import Leases
    from appliance.session.session import Session

LOG = "log"


class Planted(WrappedStorage):
    """Does something at chosen calls: at a verb on a path that ends so. Each plan is used once."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.plans: list[tuple[str, str, Callable[[Callable[[], object]], object]]] = []
        self.refused = ""

    def at(self, verb: str, ending: str, what: Callable[[Callable[[], object]], object]) -> None:
        self.plans.append((verb, ending, what))

    def before(self, verb: str, ending: str, what: Callable[[], object]) -> None:
        """Let something happen before the call is done: the process was stopped there."""

        def stopped(call: Callable[[], object]) -> object:
            what()
            return call()

        self.at(verb, ending, stopped)

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if self.refused and self.refused in path:
            raise Environment("planted", f"{verb} {path} is refused")
        for plan in self.plans:
            if plan[0] == verb and path.endswith(plan[1]):
                self.plans.remove(plan)
                return plan[2](call)  # type: ignore[return-value]
        return call()


def done_but_failed(call: Callable[[], object]) -> object:
    call()
    raise Environment("planted", "done, and reported as failed")


def not_done(call: Callable[[], object]) -> object:
    raise Environment("planted", "not done")


def files(site: HandSite) -> set[str]:
    return {path for path in site.storage.files if path.endswith(".msg")}


def payloads(site: HandSite) -> list[bytes]:
    return [message.payload for message in site.settled(LOG)]


def sent[R](site: HandSite, kind: type[R]) -> list[R]:
    return [request for request in site.transports[0].calls if isinstance(request, kind)]


def publish(session: Session, leases: Leases, *batch: bytes) -> object:
    return session.publish(LOG, list(batch), under=leases)
