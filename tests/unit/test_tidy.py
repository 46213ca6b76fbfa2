"""The repository as a text: what no type checker sees. Each check is shown to catch a planted fault."""

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGES = ("tenure", "tui", "auditor", "appliance", "timeagent")
LINES_MAX = 600
BANNED_WORDS = frozenset({"manager", "managers", "helper", "helpers", "util", "utils", "common"})
TOP_LEVEL = frozenset({
    *PACKAGES, "native", "systemd", "release", "tests", "docs", "pyproject.toml", "constraints.txt", "Makefile",
    "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", ".ci", ".gitignore", ".python-version",
})  # fmt: skip
NOT_OURS = frozenset({".git", ".venv", "dist", "__pycache__"})

# Written so that no pattern matches itself.
PLACES = re.compile(
    r"(?<![\w.>}*-])/(?:wor[k]|roo[t]|home/\w+|Users/\w+|opt/(?:pypi|wheels)[\w-]*)/"
    r"|pypi\.or[g]|pythonhosted\.or[g]|index-ur[l]|find-link[s]|artifactor[y]"
)
UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E])\b")
FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(<?([^)<>\s]+)|^\[[^\]^]+\]:[ \t]+<?([^<>\s]+)", re.MULTILINE)
DEFINITION = re.compile(r"^[ \t]*(?:async +)?(?:def|class) +(\w+)", re.MULTILINE)
RENAME = re.compile(r"\.\s*(?:rename|replace|hardlink_to|symlink_to)\b")
HEADING = re.compile(r"^# \S", re.MULTILINE)
TITLE = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def files(root: Path) -> list[Path]:
    """Every file that is, or would be, part of the repository."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
        found = [root / name for name in listed.split("\0") if name]
    else:
        found = [path for path in root.rglob("*") if NOT_OURS.isdisjoint(path.relative_to(root).parts)]
    return sorted(path for path in found if path.is_file())


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """Relative name and content of every text; bytes such as a golden tree's are passed over."""
    for path in files(root):
        try:
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def modules(root: Path, *folders: str) -> Iterator[tuple[str, str]]:
    for name, text in texts(root):
        if name.endswith(".py") and name.split("/")[0] in folders:
            yield name, text


def documents(root: Path) -> Iterator[tuple[str, str]]:
    """README.md, ARCHITECTURE.md and docs/, without code."""
    for name, text in texts(root):
        if name.endswith(".md") and (name in {"README.md", "ARCHITECTURE.md"} or name.startswith("docs/")):
            yield name, CODE_SPAN.sub("", FENCED.sub("", text))


def long_files(root: Path) -> list[str]:
    return [
        f"{name}: {count} lines"
        for name, text in texts(root)
        if name.split("/")[0] in PACKAGES and (count := len(text.splitlines())) > LINES_MAX
    ]


def strays(root: Path) -> list[str]:
    """What a test or a command has left at the top, or in a folder of its own there."""
    names = [path.relative_to(root).as_posix() for path in files(root)]
    return [name for name in names if name.split("/")[0] not in TOP_LEVEL]


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def empty_names(root: Path) -> list[str]:
    """Modules, classes and functions named by a word that says nothing."""
    found = []
    for name, text in modules(root, *PACKAGES, "tests"):
        named = [*name.removesuffix(".py").split("/"), *DEFINITION.findall(text)]
        found += [f"{name}: {word}" for word in named if words(word) & BANNED_WORDS]
    return found


def path_renames(root: Path) -> list[str]:
    """Calls of pathlib that do what os.rename, os.replace and os.link do: the linter knows functions, not methods.

    `replace` with one positional argument is a path's; that of a string has two, that of a value has names.
    """
    found = []
    for name, text in modules(root, *PACKAGES):
        for node in ast.walk(ast.parse(text, filename=name)) if RENAME.search(text) else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            method = node.func.attr
            of_a_path = method == "replace" and len(node.args) == 1 and not node.keywords
            if method in {"rename", "hardlink_to", "symlink_to"} or of_a_path:
                found.append(f"{name}:{node.lineno}: .{method}(")
    return found


def anchors(path: Path) -> set[str]:
    """What links may name in a document: its headings, as web pages of repositories make anchors of them."""
    titles = TITLE.findall(FENCED.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(root: Path) -> list[str]:
    found = []
    for name, text in documents(root):
        for target in map("".join, LINK.findall(text)):
            place, _, anchor = target.partition("#")
            if re.match(r"[a-z][a-z0-9+.-]*:", place):
                continue
            path = (root / name).parent / place if place else root / name
            if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
                found.append(f"{name}: {target}")
    return found


def places(root: Path) -> list[str]:
    return [f"{name}: {hit.group()}" for name, text in texts(root) for hit in PLACES.finditer(text)]


def unfinished(root: Path) -> list[str]:
    return [f"{name}: {hit.group()}" for name, text in texts(root) for hit in UNFINISHED.finditer(text)]


def headings(root: Path) -> list[str]:
    counts = [(name, len(HEADING.findall(text))) for name, text in documents(root) if name.startswith("docs/")]
    return [f"{name}: {count} headings of the first level" for name, count in counts if count != 1]


CHECKS = (long_files, strays, empty_names, path_renames, broken_links, places, unfinished, headings)

# In what is planted a bar stands where this file itself would otherwise be found.
PLANTED: tuple[tuple[Callable[[Path], list[str]], str, str], ...] = (
    (long_files, "tui/app.py", "x = 1\n" * (LINES_MAX + 1)),
    (long_files, "appliance/bag/schema.sql", "-- a\n" * (LINES_MAX + 1)),
    (strays, "bytes", "SQLite format 3\0\udcff"),
    (strays, "tmp/notes.md", "# a\n"),
    (empty_names, "tui/widgets/utils.py", ""),
    (empty_names, "appliance/common/paths.py", ""),
    (empty_names, "auditor/columns/index.py", "class IndexManager: ...\n"),
    (empty_names, "tests/unit/test_x.py", "async def read_helper() -> None: ...\n"),
    (path_renames, "appliance/bag/posix.py", "path.rename(other)\n"),
    (path_renames, "appliance/bag/posix.py", "path.replace(other)\n"),
    (path_renames, "auditor/evidence/tree.py", "path.hardlink_to(other)\n"),
    (path_renames, "auditor/evidence/tree.py", "path.symlink_to(other)\n"),
    (broken_links, "README.md", "[a](docs/gone.md)\n"),
    (broken_links, "docs/protocol/bag.md", "# a\n\n[a](../gone.md#b)\n"),
    (broken_links, "ARCHITECTURE.md", "A [b].\n\n[b]: docs/gone.md\n"),
    (broken_links, "README.md", "[a](docs/nfs.md#gone)\n"),
    (broken_links, "docs/a.md", "# a\n\n## b `c`\n\n[b](#b-c) [d](#d)\n"),
    (places, "README.md", "cd /wo|rk/x\n"),
    (places, "systemd/x.service", "ExecStart=/ho|me/ann/x\n"),
    (places, "constraints.txt", "--index|-url x\n"),
    (places, "docs/a.md", "# a\n\nhttps://pypi|.org/simple\n"),
    (unfinished, "tui/app.py", "# TO|DO: more\n"),
    (unfinished, "docs/a.md", "# a\n\nFIX|ME\n"),
    (headings, "docs/a.md", "# a\n\n# b\n"),
    (headings, "docs/a.md", "## a\n"),
)
HARMLESS = {
    "appliance/bag/posix.py": 'name.replace("a", "b")\nstate = replace(state, fence=1)\nx.replace(tzinfo=None)\n',
    "appliance/utilisation.py": "def uncommonly() -> None: ...\n",
    "auditor/evidence/tree.py": "x = 1\n" * LINES_MAX,
    "docs/guarantees.md": "# a\n\n```\n# b\n[x](gone.md)\n```\n\n## c\n\n[a](nfs.md#a) [b](#c) [c](https://example.org/)\n",
    "docs/nfs.md": "# a\n\nA `[x](gone.md)` and <root>/root/x and network/x.\n",
    "tests/golden/tree.bin": "\udcff",
}


def tree(root: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return root


@pytest.mark.parametrize("check", CHECKS)
def test_repository_is_tidy(check: Callable[[Path], list[str]], repository: Path) -> None:
    assert check(repository) == []


@pytest.mark.parametrize(("check", "name", "text"), PLANTED)
def test_planted_fault_is_found(check: Callable[[Path], list[str]], name: str, text: str, tmp_path: Path) -> None:
    found = check(tree(tmp_path, {**HARMLESS, name: text.replace("|", "")}))
    assert len(found) == 1
    assert found[0].startswith(name)


@pytest.mark.parametrize("check", CHECKS)
def test_harmless_text_is_let_through(check: Callable[[Path], list[str]], tmp_path: Path) -> None:
    assert check(tree(tmp_path, HARMLESS)) == []


def test_every_check_has_a_planted_fault() -> None:
    assert {check for check, _, _ in PLANTED} == set(CHECKS)


# The tree a release is made of has no .git; a clone has; both ways must see the same kind of files.
def test_files_that_git_ignores_are_not_ours(tmp_path: Path) -> None:
    tree(tmp_path, {"tui/app.py": "", ".gitignore": "*.log\n", "tui/a.log": ""})
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert [path.name for path in files(tmp_path)] == [".gitignore", "app.py"]
