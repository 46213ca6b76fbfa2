"""What comes of a tree when everybody else stands still for ever: one actor, alone, on a mount that obeys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.exhaustive.nodes import BAG, NEXT_BAG, PAST, node
from tests.simulation.exhaustive.tree import Mount, Tree, TreeWorld
from tests.support.explorer import Port
from timeagent.errors import TenureError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from appliance.bag.reader import Message
    from tests.support.explorer import Kind

BAGS = (BAG, NEXT_BAG)

type Read = tuple[tuple[str, str], ...]
"""What a reader was given: the bag and the file of each message, in order of these, twice if it was given twice."""


class Alone(Port):
    """A port on which nobody else runs: there is one answer to everything."""

    def __init__(self, tree: Tree) -> None:
        super().__init__([])
        self.tree = tree
        self._world = TreeWorld(tree, Mount(faults=frozenset()))

    def ask(self, *request: Any) -> Any:  # noqa: ANN401 - as Port
        (answer,) = self._world.answers(self.tree, request, None)
        assert isinstance(answer.tree, Tree)
        self.tree = answer.tree
        return answer.value


def left_by(tree: Tree, kinds: Iterable[Kind]) -> Tree:
    """Return what some actors leave who come one after the other."""
    for kind in kinds:
        for _ in range(kind.count):
            port = Alone(tree)
            kind.body(port)
            tree = port.tree
    return tree


def read_afterwards(tree: Tree) -> Read | str:
    """Return what the production reader delivers of a tree's bags, which it closes first; or why it cannot."""
    here = node(Alone(tree), PAST)
    try:
        here.horizon.settle(BAGS[-1].end_ns)
        return delivered(here.reader.settled())
    except TenureError as problem:
        return problem.code


def delivered(messages: Iterable[Message]) -> Read:
    return tuple(sorted((message.bag_path, message.file_name) for message in messages))
