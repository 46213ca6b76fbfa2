"""Explore every interleaving of a few actors that run unchanged production code: all of them, not a sample.

An actor is a plain function of a ``Port``. Whatever it wants to know or do is one ``ask``, and there alone others may
run. An actor sees nothing of the world but the answers, so it is a function of the answers so far: where it stands is
the list of them, a *place*. A state of the whole is what the world holds plus the place of every actor. Two schedules
that lead to one state have one future, and it is explored once; that is why this ends.

To find what an actor asks for next, its function is run again from the beginning with the answers that it had, once for
each place, however many states it occurs in. What the answers are, and what the world is afterwards, the ``World``
says: every possible one, where there are several (lost replies, caches, clocks).

*A process that dies* needs no step of its own: it is an actor that is never scheduled again. Promises are asked in
every state, not only at the end, so that the state in which all others have finished without it is asked too, and so is
its last request, done though nobody is left to hear of it. A restart is one more actor.

Not every order has to be tried. An answer that changes nothing commutes with the answers to others, unless one of them
changes the world so that it would be another: then, and only then, both orders are tried. So an actor only moves

- up to a change that it makes, or
- up to an answer that the next change, which another makes, would turn into another one;

every schedule can be brought into this form by putting off each answer as long as it stays what it is. What an actor
could be told without any further change is asked of the promises too. ``reduced=False`` tries every order instead; both
must come to the same endings, which tests/simulation/test_exhaustive_explorer.py compares.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, Protocol

from timeagent.errors import TenureError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

type Request = tuple[Any, ...]
type Notes = tuple[Any, ...]
type Move = tuple[int | str, tuple[tuple[int, int, int, int], ...]]
"""Who made a change, and who moved: actor, from which place, over which last one, to which."""
type Trail = tuple[Move, Any] | None


class Suspended(BaseException):
    """The actor has asked for something that is not answered yet."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an exception."""

    kind: Callable[..., BaseException]
    code: str

    def raised(self) -> BaseException:
        return self.kind(self.code, "planted")


class Port:
    """All that an actor has of the world."""

    def __init__(self, answers: list[Hashable]) -> None:
        self._answers = answers
        self.asked: list[Request] = []
        self.notes: list[Hashable] = []

    def ask(self, *request: Any) -> Any:  # noqa: ANN401 - the answer belongs to the request
        """Ask for something that others can see, or that others decide."""
        if len(self.asked) > len(self._answers):
            raise Suspended  # it cleans up, on its way out of the last question: that is no part of the run
        self.asked.append(request)
        if len(self.asked) > len(self._answers):
            raise Suspended
        answer = self._answers[len(self.asked) - 1]
        if isinstance(answer, Refusal):
            raise answer.raised()
        return answer

    def note(self, *value: Hashable) -> None:
        """Write down what this actor was told, for the promises. Belongs to the place reached by the last answer."""
        self.notes.append(value)


@dataclass(frozen=True, slots=True)
class Answer:
    """One possible answer, and what it leaves: the world, and what this actor's machine remembers (a cache)."""

    value: Hashable
    tree: Hashable
    memory: Hashable = None
    cost: int = 0
    """How many of the run's faults this takes."""


class World(Protocol):
    """What actors act on. Its states are immutable, and equal states are equal values."""

    def start(self) -> Hashable: ...

    def answers(self, tree: Any, request: Request, memory: Any, /) -> tuple[Answer, ...]: ...  # noqa: ANN401 - the world's own

    def by_itself(self, tree: Any, /) -> Iterable[tuple[str, Hashable]]:  # noqa: ANN401
        """What can happen without an actor: a request that is still on the way arrives, or is lost."""
        ...


class Promises(Protocol):
    """What must hold, written without a line of what is judged. Each returns the names of what is broken."""

    def in_step(self, before: Any, after: Any, /) -> list[str]: ...  # noqa: ANN401

    def in_state(self, tree: Any, notes: list[Notes], /) -> list[str]: ...  # noqa: ANN401

    def at_end(self, tree: Any, notes: list[Notes], /) -> list[str]:  # noqa: ANN401
        """Asked where no actor has anything left to do and no request is on the way."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """Actors that do the same under the same name: how many of them cannot be told apart but by their places."""

    name: str
    body: Callable[[Port], None]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Breach:
    """A promise that was broken, and the schedule that led there."""

    promise: str
    schedule: tuple[str, ...]


@dataclass(slots=True)
class Explored:
    """What an exploration found."""

    states: int = 0
    transitions: int = 0
    ends: int = 0
    places: int = 0
    breaches: list[Breach] = field(default_factory=list)
    bounded: bool = False
    """Whether it stopped at its bound: then it says nothing."""
    endings: set[tuple[Any, ...]] = field(default_factory=set)
    """What the world and the actors came to, each once."""

    def told(self) -> set[tuple[Any, ...]]:
        """Return every note that some actor ended with."""
        return {note for _, *notes in self.endings for each in notes for note in each}


_SHOWN = 400


@dataclass(frozen=True, slots=True)
class _Known:
    """What can follow in one tree from one place, whose request is answered there."""

    told: tuple[int, ...]
    """The places after an answer that changes nothing."""
    changes: tuple[tuple[int, int, int], ...]
    """The others: tree and place after it, and its cost in faults."""


_FINISHED = _Known((), ())


class Explorer:
    """One exploration of one cast."""

    def __init__(
        self,
        world: World,
        cast: Iterable[Kind],
        promises: Promises,
        *,
        faults: int = 0,
        states_max: int = 2_000_000,
        reduced: bool = True,
        breadth_first: bool = False,
    ) -> None:
        self._world = world
        self._promises = promises
        self._faults = faults
        self._states_max = states_max
        self._reduced = reduced
        self._breadth_first = breadth_first
        self._kinds: list[Kind] = []
        self._groups: list[tuple[int, int]] = []
        """For each actor, the first and the one after the last of its kind."""
        for kind in cast:
            self._groups += [(len(self._kinds), len(self._kinds) + kind.count)] * kind.count
            self._kinds += [kind] * kind.count
        # Trees, by number.
        self._trees: list[Hashable] = []
        self._tree_numbers: dict[Hashable, int] = {}
        # Places, by number: whose, reached from where by which answer, and what is asked for there (None: finished).
        self._kind_of: list[int] = []
        self._before: list[int] = []
        self._answer: list[Hashable] = []
        self._memory: list[Hashable] = []
        self._asks: list[Request | None] = []
        self._noted: list[int] = []
        self._children: dict[tuple[int, Hashable, Hashable], int] = {}
        self._finished: dict[tuple[int, int], int] = {}
        self._notes: list[Notes] = []
        self._note_numbers: dict[Notes, int] = {}
        # What was worked out before.
        self._known: dict[tuple[int, int], _Known] = {}
        self._reach: dict[tuple[int, int], tuple[int, ...]] = {}
        self._overtaken: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = {}
        self._late: dict[int, tuple[tuple[str, int], ...]] = {}
        self._noted_there: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
        self._judged: set[tuple[int, ...]] = set()
        self._stepped: set[tuple[int, int]] = set()
        self._found = Explored()

    # -- the search ----------------------------------------------------------------------------------------------------

    def run(self, *, to_first_breach: bool = True) -> Explored:
        """Explore until everything is, or a promise is broken, or the bound is hit."""
        found = self._found = Explored()
        roots = {id(kind): self._place(number, -1, None, None) for number, kind in enumerate(self._kinds)}
        # Actors of one kind start at one place.
        start = (self._tree(self._world.start()), self._faults, *(roots[id(kind)] for kind in self._kinds))
        seen = {start}
        waiting: deque[tuple[tuple[int, ...], Trail]] = deque([(start, None)])
        take = waiting.popleft if self._breadth_first else waiting.pop
        moves_of = self._moves if self._reduced else self._all_moves
        while waiting:
            state, trail = take()
            self._judge(state, trail)
            for move, following in moves_of(state):
                found.transitions += 1
                if following[0] != state[0]:
                    self._step(state[0], following[0], (move, trail))
                if following not in seen:
                    seen.add(following)
                    waiting.append((following, (move, trail)))
            found.bounded = len(seen) > self._states_max
            if found.bounded or (found.breaches and to_first_breach):
                break
        found.states, found.places = len(seen), len(self._asks)
        return found

    def _all_moves(self, state: tuple[int, ...]) -> Iterator[tuple[Move, tuple[int, ...]]]:
        """Every answer to every actor: each is a move."""
        tree, faults, *places = state
        for actor, place in enumerate(places):
            known = self._follow(tree, place)
            for after, following, cost in (*((tree, each, 0) for each in known.told), *known.changes):
                if cost <= faults:
                    options: list[tuple[tuple[int, int], ...]] = [((each, -1),) for each in places]
                    options[actor] = ((following, place),)
                    yield from self._product((after, faults - cost), options, places, actor)
        for what, after in self._arriving(tree):
            yield (what, ()), (after, faults, *places)

    def _moves(self, state: tuple[int, ...]) -> Iterator[tuple[Move, tuple[int, ...]]]:
        """Every change that some actor can make, or that happens by itself, with all that it may overtake."""
        tree, faults, *places = state
        for actor, place in enumerate(places):
            if self._groups[actor][0] < actor and places[actor - 1] == place:
                continue  # of two that cannot be told apart one is enough
            for last in self._reachable(tree, place):
                for after, following, cost in self._follow(tree, last).changes:
                    if cost <= faults:
                        options = [self._options(tree, after, each) for each in places]
                        options[actor] = ((following, last),)
                        yield from self._product((after, faults - cost), options, places, actor)
        for what, after in self._arriving(tree):
            options = [self._options(tree, after, each) for each in places]
            yield from self._product((after, faults), options, places, what)

    def _product(
        self, head: tuple[int, int], options: list[tuple[tuple[int, int], ...]], places: list[int], who: int | str
    ) -> Iterator[tuple[Move, tuple[int, ...]]]:
        for chosen in product(*options):
            then = [each for each, _ in chosen]
            moved = tuple((actor, places[actor], last, each) for actor, (each, last) in enumerate(chosen) if last >= 0)
            for low, high in self._groups:
                if high - low > 1:
                    then[low:high] = sorted(then[low:high])
            yield (who, moved), (*head, *then)

    def _options(self, tree: int, after: int, place: int) -> tuple[tuple[int, int], ...]:
        """Where an actor may be when another changes the world: where it is, or past an answer that would be another.

        Each with the place of that last answer.
        """
        if tree == after:
            return ((place, -1),)
        found = self._overtaken.get((tree, after, place))
        if found is None:
            past = (
                (following, last)
                for last in self._reachable(tree, place)
                if (told := self._follow(tree, last).told) and told != self._follow(after, last).told
                for following in told
            )
            found = self._overtaken[tree, after, place] = ((place, -1), *past)
        return found

    def _reachable(self, tree: int, place: int) -> tuple[int, ...]:
        """Return where an actor can come to by answers that change nothing; where it is, first."""
        found = self._reach.get((tree, place))
        if found is None:
            each = {place: None}
            for following in self._follow(tree, place).told:
                each.update(dict.fromkeys(self._reachable(tree, following)))
            found = self._reach[tree, place] = tuple(each)
        return found

    def _follow(self, tree: int, place: int) -> _Known:
        request = self._asks[place]
        if request is None:
            return _FINISHED
        known = self._known.get((tree, place))
        if known is None:
            each = [
                (self._tree(answer.tree), self._child(place, answer.value, answer.memory), answer.cost)
                for answer in self._world.answers(self._trees[tree], request, self._memory[place])
            ]
            told = {following: None for after, following, cost in each if after == tree and not cost}
            changes = [change for change in each if change[0] != tree or change[2]]
            known = self._known[tree, place] = _Known(tuple(told), tuple(dict.fromkeys(changes)))
        return known

    def _arriving(self, tree: int) -> tuple[tuple[str, int], ...]:
        known = self._late.get(tree)
        if known is None:
            each = self._world.by_itself(self._trees[tree])
            known = self._late[tree] = tuple((what, self._tree(after)) for what, after in each)
        return known

    # -- promises ------------------------------------------------------------------------------------------------------

    def _step(self, before: int, after: int, trail: Trail) -> None:
        if (before, after) not in self._stepped:
            self._stepped.add((before, after))
            broken = self._promises.in_step(self._trees[before], self._trees[after])
            self._found.breaches += [Breach(name, self._schedule(trail)) for name in broken]

    def _judge(self, state: tuple[int, ...], trail: Trail) -> None:
        """Ask the promises about this state, and about all that follow from it without a change."""
        tree, _, *places = state
        for chosen in product(*(self._noting(tree, place) for place in places)):
            ended = all(self._asks[last] is None for _, last in chosen) and not self._arriving(tree)
            key = (tree, ended, *(noted for noted, _ in chosen))
            if key in self._judged:
                continue
            self._judged.add(key)
            notes = [self._notes[noted] for noted, _ in chosen]
            broken = self._promises.in_state(self._trees[tree], notes)
            if ended:
                self._found.ends += 1
                self._found.endings.add((self._trees[tree], *notes))
                broken += self._promises.at_end(self._trees[tree], notes)
            if broken:
                ways = ((actor, places[actor], last, last) for actor, (_, last) in enumerate(chosen))
                schedule = self._schedule((("", tuple(way for way in ways if way[1] != way[2])), trail))
                self._found.breaches += [Breach(name, schedule) for name in broken]

    def _noting(self, tree: int, place: int) -> tuple[tuple[int, int], ...]:
        """What an actor may have noted without any further change, finished or not; each with a place where it has."""
        if not self._reduced:
            return ((self._noted[place], place),)
        found = self._noted_there.get((tree, place))
        if found is None:
            reachable = reversed(self._reachable(tree, place))
            each = {(self._noted[last], self._asks[last] is None): last for last in reachable}
            found = self._noted_there[tree, place] = tuple((noted, last) for (noted, _), last in each.items())
        return found

    # -- trees and places ----------------------------------------------------------------------------------------------

    def _tree(self, tree: Hashable) -> int:
        number = self._tree_numbers.get(tree)
        if number is None:
            number = self._tree_numbers[tree] = len(self._trees)
            self._trees.append(tree)
        return number

    def _child(self, place: int, answer: Hashable, memory: Hashable) -> int:
        key = (place, answer, memory)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._place(self._kind_of[place], place, answer, memory)
        return child

    def _place(self, kind: int, before: int, answer: Hashable, memory: Hashable) -> int:
        """Run the actor from its beginning up to its next request."""
        asked, answers = self._past(before)
        port = Port([*answers, answer] if before >= 0 else [])
        request: Request | None = None
        try:
            self._kinds[kind].body(port)
        except Suspended:
            request = port.asked.pop()
        except TenureError as problem:
            port.note("raised", problem.code)
        except Exception as problem:  # noqa: BLE001 - whatever it is: production code must not do that
            port.note("broke", repr(problem))
        assert port.asked == asked, f"{self._kinds[kind].name} is no function of its answers: {port.asked} != {asked}"
        notes = tuple(port.notes)
        noted = self._note_numbers.setdefault(notes, len(self._notes))
        if noted == len(self._notes):
            self._notes.append(notes)
        if request is None and (kind, noted) in self._finished:
            return self._finished[kind, noted]  # how it came to its end no longer matters
        number = len(self._asks)
        self._kind_of.append(kind)
        self._before.append(before)
        self._answer.append(answer)
        self._memory.append(memory)
        self._asks.append(request)
        self._noted.append(noted)
        if request is None:
            self._finished[kind, noted] = number
        return number

    def _past(self, place: int) -> tuple[list[Request], list[Hashable]]:
        """What was asked up to and in this place, and how that was answered but for the last."""
        asked: list[Request] = []
        answers: list[Hashable] = []
        while place >= 0:
            request = self._asks[place]
            assert request is not None
            asked.append(request)
            if self._before[place] >= 0:
                answers.append(self._answer[place])
            place = self._before[place]
        return asked[::-1], answers[::-1]

    # -- the schedule --------------------------------------------------------------------------------------------------

    def _schedule(self, trail: Trail) -> tuple[str, ...]:
        moves = []
        while trail is not None:
            move, trail = trail
            moves.append(move)
        return tuple(line for move in moves[::-1] for line in self._lines(move))

    def _lines(self, move: Move) -> Iterator[str]:
        who, moved = move
        # Who makes the change comes last: the others saw what was before it.
        for actor, place, last, following in sorted(moved, key=lambda each: each[0] == who):
            way = [last]
            while way[-1] != place and self._before[way[-1]] >= 0:
                way.append(self._before[way[-1]])
            way = way[::-1] if following == last else [*way[::-1], following]
            for here, there in pairwise(way):
                yield self._line(actor, here, there)
        if isinstance(who, str) and who:
            yield f"(by itself) {who}"

    def _line(self, actor: int, place: int, following: int) -> str:
        request = self._asks[place]
        assert request is not None
        said = f"{self._kinds[actor].name}: {' '.join(_short(each) for each in request)}"
        if self._asks[following] is None:
            return f"{said}; ends with {self._notes[self._noted[following]]}"
        return f"{said} -> {_short(self._answer[following])}"


def _short(value: object) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, Refusal):
        return f"raises {value.code}"
    text = repr(sorted(value)) if isinstance(value, frozenset) else str(value)
    return text if len(text) < _SHOWN else text[:_SHOWN] + "..."
