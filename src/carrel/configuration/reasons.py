"""The reason of each field of the configuration: the text beneath it in `schema`."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import get_type_hints

from carrel.configuration.fields import key_of
from carrel.configuration.schema import Configuration


@cache
def reasons() -> dict[str, str]:
    """Path of a field → its reason. A field that explains itself has none."""
    return dict(_of_section(Configuration, ""))


def _of_section(section: type, path: str) -> Iterator[tuple[str, str]]:
    beneath = _texts_beneath(section)
    hints = get_type_hints(section)
    for each in fields(section):
        here = f"{path}.{key_of(each.name)}" if path else key_of(each.name)
        if is_dataclass(hints[each.name]):
            yield from _of_section(hints[each.name], here)
        elif each.name in beneath:
            yield here, beneath[each.name]


def _texts_beneath(section: type) -> dict[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(below.value.value.split())
        for field, below in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }
