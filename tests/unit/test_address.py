"""Where a node is reached: one text, one meaning."""

from __future__ import annotations

import pytest

from appliance.formats.address import PORT, Address, parse_address
from timeagent.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9", Address("127.0.0.1", 9)),
        ("alpha.example:65535", Address("alpha.example", 65535)),
        ("alpha", Address("alpha", PORT)),
        ("[::1]:7", Address("::1", 7)),
        ("[fe80::7]", Address("fe80::7", PORT)),
    ],
)
def test_address_is_read_and_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":1",
        "a:",
        "a:0",
        "a:65536",
        "a:-1",
        "a:1:2",
        "::1",
        "[::1",
        "[::1]x",
        "[::1]:",
        "[a]:1",
        "a b:1",
        "a:٣",
        "-a:1",
    ],
)
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_address(text)
    assert refused.value.code == "bad-address"
    assert refused.value.hint
