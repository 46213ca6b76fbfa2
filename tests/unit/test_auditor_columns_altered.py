"""One statement of a shard, or one frame, is another than it should be: columns leave to the rules what they must."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from appliance.formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from appliance.formats.witness import SessionKind, WitnessKind
from auditor.evidence.signatures import Signatures
from tests.bench.corpus.bank import BankStory
from tests.bench.corpus.build import build_bank
from tests.support.by_rules import by_columns_first, by_rules
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.formats.framing import FrameHead
    from appliance.formats.witness import Entry
    from tests.bench.corpus.cast import Shard

MESSAGES = 3 * 512
STEPS_NS = (1, MS, 50 * MS, SECOND, 12 * SECOND)
ENUMS = (WitnessKind, SessionKind, Mode, Phase, LeaseOutcome)


class Altered(BankStory):
    """The story of the bank, but for one thing in it."""

    chance = random.Random(0)
    """Set before each story."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - as the story takes them
        super().__init__(*arguments, **named)
        self._said = self._sealed = 0
        of_frame = self.chance.random() < 0.25
        self._victim = self.chance.randrange(600 if of_frame else 2600)
        self._of_frame = of_frame
        self._ids: list[bytes] = [bytes(16)]
        self._carried: list[bytes] = []

    def say(self, shard: Shard, entry: Entry) -> None:
        self._said += 1
        for name in ("correlation_id", "session_id"):
            each = getattr(entry, name, None)
            if each is not None and self.chance.random() < 0.1:
                self._ids.append(each)
        if self._of_frame or self._said != self._victim:
            super().say(shard, entry)
            return
        what = self.chance.random()
        if what < 0.03:
            super().say(shard, entry)
            super().say(shard, entry)
        elif what < 0.06 and shard.entries:
            super().say(shard, shard.entries[-1])
            shard.entries[-2] = entry
        else:
            super().say(shard, self._other(entry))

    def _other[T: msgspec.Struct](self, entry: T) -> T:
        """Return a record with another value in one field."""
        name = self.chance.choice(entry.__struct_fields__)
        value = getattr(entry, name)
        return msgspec.structs.replace(entry, **{name: self._instead(value, name)})

    def _instead(self, value: object, name: str) -> object:
        """Return another value of the same field."""
        chance = self.chance
        kind = next((each for each in ENUMS if isinstance(value, each)), None)
        if kind is not None:
            return chance.choice([each for each in kind if each is not value])
        match value:
            case Ending() if chance.random() < 0.1:
                return None
            case Ending() | Holder():
                return self._other(value)
            case int():
                step = chance.choice(STEPS_NS) * chance.choice((-1, 1))
                return chance.choice((0, max(0, value - 1), value + 1, max(0, value + step), 2**63 - 1))
            case bytes() if name.endswith("_id"):
                return chance.choice([*self._ids[-5:], value[:8] + bytes(8), bytes(8) + value[8:]])
            case bytes():
                return value[:-1] + bytes([value[-1] ^ 1])
            case str():
                return chance.choice(("account/00001", "branch/0-00000", "n1", "n2"))
            case None:
                return {"session_id": self._ids[-1], "previous_id": self._ids[-1], "watermark_ns": 5}.get(name)
        return value

    def seal(self, head: FrameHead, instant: int, message: bytes) -> tuple[bytes, bytes]:
        self._sealed += 1
        if self._of_frame and self._sealed == self._victim:
            chance, carried = self.chance, list(head.witnesses)
            what = chance.randrange(5)
            if what == 0:
                del carried[chance.randrange(len(carried))]
            elif what == 1:
                carried.append(chance.choice([*carried, *self._carried]))
            elif what == 2:
                carried[chance.randrange(len(carried))] = chance.choice(self._carried)
            elif what == 3:
                instant += chance.choice((-1, 1)) * chance.choice(STEPS_NS)
            else:
                head = msgspec.structs.replace(head, incarnation=bytes(8))
            head = msgspec.structs.replace(head, witnesses=tuple(carried))
        if self.chance.random() < 0.1 or self._sealed == 1:
            self._carried = list(head.witnesses)
        return super().seal(head, instant, message)


def alter(root: Path, seed: int) -> None:
    """Make a tree, and see that columns leave to the rules what the rules find."""
    Altered.chance = random.Random(seed)
    build_bank(root, MESSAGES, message_bytes=10, story_of=Altered)
    signatures = Signatures()
    assert by_columns_first(root, signatures) == by_rules(root, signatures)


@pytest.mark.verify
@pytest.mark.parametrize("seed", range(24))
def test_what_is_altered_is_judged_as_by_the_rules_alone(tmp_path: Path, seed: int) -> None:
    alter(tmp_path, seed)
