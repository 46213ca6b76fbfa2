"""Every public name says its types: each argument and each answer of what applications call, and nothing is Any."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from typing import TYPE_CHECKING

import pytest

import tenure
import tenure.aio

if TYPE_CHECKING:
    from collections.abc import Iterator


def untyped(text: str, name: str) -> Iterator[str]:
    """Yield what has no type, or any, of a class or function in a module's text, but for what is its own."""
    (node,) = [each for each in ast.parse(text).body if getattr(each, "name", None) == name]
    inner = node.body if isinstance(node, ast.ClassDef) else [node]
    for each in inner:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and (
            not each.name.startswith("_") or each.name.endswith("__")
        ):
            named = [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs, each.args.vararg, each.args.kwarg]
            said = {arg.arg: arg.annotation for arg in named if arg is not None and arg.arg not in ("self", "cls")}
            for what, annotation in {**said, "return": each.returns}.items():
                if annotation is None or re.search(r"\bAny\b", ast.unparse(annotation)):
                    yield f"{name}.{each.name}: {what}"


PUBLIC = [each for module in (tenure, tenure.aio) for each in map(module.__dict__.get, module.__all__) if each]
PUBLIC += [getattr(tenure, name) for name in tenure.__all__]


@pytest.mark.parametrize("public", [each for each in dict.fromkeys(PUBLIC) if inspect.isclass(each)])
def test_every_argument_and_answer_has_a_type(public: type) -> None:
    module = importlib.import_module(public.__module__)
    assert list(untyped(inspect.getsource(module), public.__name__)) == []


def test_what_has_no_type_would_be_found() -> None:
    text = (
        "class A:\n    def f(self, a, b: int, *c: Any) -> None: ...\n    def _g(self, a): ...\n    def h(self): ...\n"
    )
    assert list(untyped(text, "A")) == ["A.f: a", "A.f: c", "A.h: return"]
