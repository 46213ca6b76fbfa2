"""As much of JSON Schema as docs/schemas/ uses; a keyword that is not known here is refused, not passed over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

KNOWN = {
    "$schema",
    "$defs",
    "$ref",
    "title",
    "description",
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "const",
    "anyOf",
    "pattern",
    "minimum",
}
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def problems(value: object, schema: dict[str, Any], root: dict[str, Any] | None = None, at: str = "$") -> Iterator[str]:
    """Yield what a value breaks of a schema."""
    root = schema if root is None else root
    unknown = set(schema) - KNOWN
    assert not unknown, f"keywords that the validator does not know: {unknown}"
    if "$ref" in schema:
        yield from problems(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, at)
    if "anyOf" in schema:
        tried = [list(problems(value, each, root, at)) for each in schema["anyOf"]]
        if all(tried):
            yield min(tried, key=len)[0]
    wanted = schema.get("type")
    if wanted and (not isinstance(value, TYPES[wanted]) or (wanted == "integer" and isinstance(value, bool))):
        yield f"{at}: {value!r} is no {wanted}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{at}: {value!r} does not match {schema['pattern']}"
    if "minimum" in schema and isinstance(value, int) and value < schema["minimum"]:
        yield f"{at}: {value} is below {schema['minimum']}"
    if isinstance(value, dict):
        yield from _members(value, schema, root, at)
    if isinstance(value, list) and "items" in schema:
        for number, each in enumerate(value):
            yield from problems(each, schema["items"], root, f"{at}[{number}]")


def _members(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    known = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at}: {name} is missing"
    for name, each in value.items():
        if name in known:
            yield from problems(each, known[name], root, f"{at}.{name}")
        elif rest is False:
            yield f"{at}: {name} is not documented"
        elif isinstance(rest, dict):
            yield from problems(each, rest, root, f"{at}.{name}")
