"""The protocol's documents say what the code does: fields, sizes, bytes, and a reader in C that compiles."""

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from appliance.formats import framing, stamped, witness
from tests.support.records import RECORDS
from tests.support.values import COVERED, all_files, nonce_token, page_token
from timeagent import signedtime
from timeagent.canonical import Record
from timeagent.signedtime import SignedTime

SECTION = re.compile(r"^#### `(\w+)`\n(.*?)(?=^#)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def formats(repository: Path) -> str:
    return (repository / "docs/protocol/formats.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def time(repository: Path) -> str:
    return (repository / "docs/protocol/time.md").read_text(encoding="utf-8")


def all_records() -> dict[str, type]:
    """Every record that is stored, and those inside of it."""
    found: dict[str, type] = {}

    def visit(info: msgspec.inspect.Type) -> None:
        match info:
            case msgspec.inspect.StructType(cls=cls, fields=fields):
                found[cls.__name__] = cls
                for field in fields:
                    visit(field.type)
            case msgspec.inspect.VarTupleType(item_type=item):
                visit(item)
            case msgspec.inspect.UnionType(types=types):
                for each in types:
                    visit(each)

    for kind in RECORDS:
        visit(msgspec.inspect.type_info(kind))
    return found


def words(info: msgspec.inspect.Type) -> str:
    """How the document writes a type."""
    match info:
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(
                [words(each) for each in types if not isinstance(each, msgspec.inspect.NoneType)] + ["nil"]
            )
        case msgspec.inspect.IntType(ge=0, le=high) if high == 2**63 - 1:
            return "u63"
        case msgspec.inspect.BytesType(min_length=128):
            return "token"
        case msgspec.inspect.BytesType(min_length=length):
            return f"bytes {length}" if length else "bytes"
        case msgspec.inspect.StrType():
            return "text"
        case msgspec.inspect.EnumType():
            return "word"
        case msgspec.inspect.VarTupleType(item_type=item):
            return f"array of {words(item)}"
        case msgspec.inspect.StructType(cls=cls):
            return f"`{cls.__name__}`"
    raise AssertionError(info)


def fields(kind: type) -> list[tuple[str, str]]:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return [(field.name, words(field.type)) for field in info.fields]


def disagreements(text: str) -> list[str]:
    """Records whose table is not what is encoded."""
    tables = {name: ROW.findall(body) for name, body in SECTION.findall(text)}
    records = all_records()
    assert issubclass(records["Witness"], Record)
    return sorted(name for name in tables.keys() | records if tables.get(name) != fields(records.get(name, Record)))


def test_every_record_stands_in_the_document_with_its_fields_in_order(formats: str) -> None:
    assert disagreements(formats) == []


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("| `closer` | text |", "| `closer` | bytes |", "LockFile"),
        ("| `sealer` | text | node |\n", "", "RackSeal"),
        ("| `lock` | bytes |", "| `locks` | bytes |", "SealEntry"),
        ("#### `Ended`", "#### `Finished`", "Ended"),
    ],
)
def test_wrong_table_is_found(formats: str, old: str, new: str, name: str) -> None:
    assert formats.count(old) == 1
    assert name in disagreements(formats.replace(old, new))


def test_tags_kinds_contexts_and_limits_are_in_the_document(formats: str) -> None:
    sessions = (witness.SessionWitness, witness.SessionEnded)
    for entry in (witness.Witness, witness.Ended, witness.Revoked, *sessions, witness.CeilingCopy, witness.Stopped):
        assert f"begins with the word `{entry.__struct_config__.tag}`" in formats
    for kind in framing.Kind:
        assert f"| {int(kind)} | {kind.name.lower()} |" in formats
    contexts = [*stamped.CONTEXTS.values(), signedtime.PAGE_CONTEXT, signedtime.NONCE_CONTEXT, witness.HEAD_CONTEXT]
    for context in [*contexts, "witness batch head"]:
        assert f"`{context}`" in formats
    assert framing.PAYLOAD_BYTES_MAX == 64 * 2**20
    assert framing.MESSAGE_BYTES_MAX == 2**20
    assert framing.FRAME_BYTES_MAX == 32 * 2**20
    assert framing.FRAME_MESSAGES_MAX == 65_536
    assert framing.LEASES_MAX == 64
    assert framing.OVERHEAD_BYTES == 28


def test_sizes_in_the_document_are_those_of_the_golden_bytes(formats: str) -> None:
    sizes = {name: len(data) for name, data in all_files().items()}
    table = formats.split("## Sizes")[1].split("##", maxsplit=1)[0]
    found = {
        int(number) for row in table.splitlines() if "|" in row for number in re.findall(r"\d+", row.split("|")[2])
    }
    assert found == {size for name, size in sizes.items() if name != "marker"}


def test_document_names_files_that_are_there(repository: Path, formats: str, time: str) -> None:
    for text in (formats, time):
        named = re.findall(r"`((?:appliance|timeagent|tests)/[\w/.*]+)`", text)
        assert named
        assert [name for name in named if not list(repository.glob(name.rstrip("/")))] == []


def test_worked_example_is_the_golden_token(time: str) -> None:
    block = time.split("### Worked example")[1].split("```")[1]
    digits = "".join(line.split("  ", 1)[0] for line in block.splitlines())
    assert bytes.fromhex(digits) == page_token().encode()
    assert str(page_token().midpoint_ns) in block


# What the reader says of each token must be what the decoder says.
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed: the reader in time.md was NOT compiled")
def test_reader_in_c_compiles_and_agrees(time: str, tmp_path: Path) -> None:
    source = time.split("```c\n")[1].split("```", maxsplit=1)[0]
    assert len(source.splitlines()) <= 20
    (tmp_path / "reader.c").write_text(source)
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", "reader", "reader.c"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    def read(data: bytes) -> tuple[int, str]:
        done = subprocess.run([tmp_path / "reader"], input=data, capture_output=True, check=False)
        return done.returncode, done.stdout.decode()

    for token in (page_token(), nonce_token(COVERED), page_token(1, 5)):
        again = SignedTime.decode(token.encode())
        said = f"{again.interval.earliest} {again.interval.latest} {again.status:d} {again.flags:d}\n"
        assert read(token.encode()) == (0, said)
    good = page_token().encode()
    for bad in (
        b"",
        good[:-1],
        good + b"\0",
        b"TNSU" + good[4:],
        good[:5] + b"\4" + good[6:],
        good[:7] + b"\1" + good[8:],
    ):
        assert read(bad) == (65, "")
