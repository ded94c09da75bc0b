"""settings.md: each setting of each process once, with its reason, and the index of environment variables."""

import ast
import dataclasses
import inspect
import textwrap
from collections import defaultdict

from tools.reference import Page, code, document, table
from tools.reference.commands import Command, Option, commands


def page() -> Page:
    users: dict[type, list[str]] = defaultdict(list)
    options: dict[tuple[type, str], Option] = {}
    variables: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for command in commands():
        for option in command.options:
            for variable in option.variables:
                variables[variable][option.shown].append(command.name)
        if command.settings is not None:
            _assign(command, users, options)
    parts = [_section(group, users[group], options) for group in users]
    index = table(
        ["variable", "option", "commands"],
        [
            [code(variable), code(shown), ", ".join(names)]
            for variable, found in sorted(variables.items())
            for shown, names in found.items()
        ],
    )
    introduction = (
        "A group of settings is one dataclass in the code. Several commands may have the same group; each setting"
        " stands here once, with its reason. What each command takes is in [commands.md](commands.md)."
    )
    text = document("Settings", introduction, *parts, "## Environment variables", index)
    return Page("settings.md", text)


def _assign(command: Command, users: dict[type, list[str]], options: dict[tuple[type, str], Option]) -> None:
    """Each option to the class that declares it."""
    assert command.settings is not None
    for option in command.options:
        group = next(each for each in command.settings.__mro__ if option.field in each.__annotations__)
        options.setdefault((group, option.field), option)
        if command.name not in users[group]:
            users[group].append(command.name)


def _section(group: type, users: list[str], options: dict[tuple[type, str], Option]) -> str:
    rows = []
    why = reasons(group)
    for field in dataclasses.fields(group):
        option = options.get((group, field.name))
        if option is not None:
            named = " ".join(map(code, option.variables))
            meaning = f"{option.help} {why.get(field.name, '')}"
            rows.append([code(option.shown), code(option.default), named, meaning])
    title = _words(group.__name__.removesuffix("Settings"))
    about = inspect.getdoc(group) or ""
    own = about if not about.startswith(f"{group.__name__}(") else ""  # else it is what dataclass writes
    by = f"Of {', '.join(code(f'carrel {name}') for name in users)}."
    return "\n\n".join([f"## {title}", " ".join(f"{own} {by}".split()), _rows(rows)])


def _rows(rows: list[list[str]]) -> str:
    return table(["setting", "default", "environment", "meaning, and why"], rows)


def _words(name: str) -> str:
    """`MemoryUnit` → `Memory unit`."""
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
    return spaced.capitalize()


def reasons(group: type) -> dict[str, str]:
    """Field → the sentence beneath it."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(group))).body[0]
    except OSError:  # a class that is made from a table has no source; its fields may bring their reasons
        return {each.name: str(each.metadata.get("reason", "")) for each in dataclasses.fields(group)}
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            value = below.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[field.target.id] = " ".join(value.value.split())
    return found
