from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.formats.names import (
    PORT,
    Address,
    check_domain,
    check_log,
    check_node,
    check_purpose,
    parse_address,
    tree_of,
)
from timeagent.errors import BadRequest


@pytest.mark.parametrize("name", ["a", "accounts/7", "/tenant/a b", "é" * 256, "x" * 512, "naïve ☃", "\u2028"])
def test_domain_is_any_plain_text_of_up_to_512_bytes(name: str) -> None:
    assert check_domain(name) == name


@pytest.mark.parametrize(
    ("check", "code", "bad"),
    [
        *(
            (check_domain, "bad-domain", bad)
            for bad in ("", "x" * 513, "é" * 257, "a\nb", "a\0", "\x7f", "\x85", "\ud800")
        ),
        *(
            (check_log, "bad-log-name", bad)
            for bad in ("", ".", "..", ".a", "-a", "_a", "a/b", "a b", "é", "a\n", "x" * 101)
        ),
        *((check_node, "bad-node-name", bad) for bad in ("", "-a", "a-", "A", "a.b", "a_b", "a\n", "x" * 64, "é")),
        *((check_purpose, "bad-purpose", bad) for bad in ("x" * 129, "é" * 65, "a\nb", "\ud800", "\x1b[1m")),
    ],
)
def test_name_that_breaks_its_rule_is_refused_by_name(check: Callable[[str], str], code: str, bad: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check(bad)
    assert refused.value.code == code
    assert refused.value.hint
    assert len(refused.value.message) < 300
    assert bad or "shorten" not in refused.value.hint


@pytest.mark.parametrize("name", ["a", "A.b_c-1", "0", "x" * 100, "log", "tmp"])
def test_log_name_is_a_plain_directory_name(name: str) -> None:
    assert check_log(name) == name


@pytest.mark.parametrize("name", ["a", "0", "node-a", "a--b", "x" * 63])
def test_node_name_is_the_first_label_of_a_host_name(name: str) -> None:
    assert check_node(name) == name


@pytest.mark.parametrize("text", ["", "backup of /srv", "é" * 64])
def test_purpose_is_free_text(text: str) -> None:
    assert check_purpose(text) == text


@pytest.mark.parametrize(
    ("domain", "tree"),
    [
        ("accounts/7", "accounts/7"),
        ("/", "/"),
        ("/a", "/a"),
        ("/a/", "/a"),
        ("/a/b/c", "/a"),
        ("/ab/c", "/ab"),
        ("//a", "/"),
    ],
)
def test_path_hashes_by_its_root_and_any_other_name_whole(domain: str, tree: str) -> None:
    assert tree_of(domain) == tree


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9", Address("127.0.0.1", 9)),
        ("alpha.example:65535", Address("alpha.example", 65535)),
        ("alpha", Address("alpha", PORT)),
        (f"a.{'b' * 63}:1", Address(f"a.{'b' * 63}", 1)),
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
        "a..b:1",  # no resolver takes such a name, and Python's says so by an error that is none of a connection's
        f"{'a' * 64}.b:1",
    ],
)
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_address(text)
    assert refused.value.code == "bad-address"
    assert refused.value.hint
