"""commands.md: each command with its arguments and options, as typer reads them."""

import enum
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from carrel import __version__
from carrel.cli.commands import COMMANDS
from carrel.cli.frame import Entry, callback_of
from carrel.option_fields import secrets_of
from tools.reference import Page, code, document, table

EXAMPLES = re.compile(r"^Examples?:", re.MULTILINE)


@dataclass(frozen=True)
class Option:
    """An option or an argument of a command."""

    field: str
    shown: str
    """`--port`, `-n, --namespace`, or the argument in capitals. Empty: only the environment gives it."""
    kind: str
    variables: tuple[str, ...]
    default: str
    help: str
    is_argument: bool


@dataclass(frozen=True)
class Command:
    name: str
    help: str
    options: tuple[Option, ...]
    settings: type | None
    """The dataclass that its options come from."""
    is_ours: bool = True
    """Not the command of another package, which cannot say what it is called here."""

    @property
    def summary(self) -> str:
        return " ".join(self.help.partition("\n\n")[0].split())

    @property
    def examples(self) -> str:
        rest = "".join(EXAMPLES.split(self.help)[1:])
        return "\n".join(line.strip() for line in rest.splitlines() if line.strip())

    @property
    def description(self) -> str:
        """What stands between the summary and the examples."""
        return EXAMPLES.split(self.help.partition("\n\n")[2])[0].strip()


def commands(table: Mapping[str, Entry] | None = None, before: str = "") -> Iterator[Command]:
    """In the order of `carrel --help`; those of a group stand where it does."""
    rows = {name: row for section in COMMANDS.values() for name, row in section.items()} if table is None else table
    for name, row in rows.items():
        if row.commands:
            yield from commands(row.commands, f"{before}{name} ")
        else:
            yield _command(before + name, row.function())


def _command(name: str, function: Callable[..., Any]) -> Command:
    callback = callback_of(function)
    hints = get_type_hints(callback, include_extras=True)
    hints.pop("return", None)
    parameters = inspect.signature(callback).parameters
    options = [_option(field, hint, parameters[field].default) for field, hint in hints.items() if field in parameters]
    is_ours = function.__module__.split(".")[0] == "carrel"
    settings = get_type_hints(function).get("settings")
    secrets = secrets_of(settings).items() if settings is not None else ()
    options += [Option(field, "", "text", tuple(info.variables), "", info.help, False) for field, info in secrets]
    return Command(name, inspect.getdoc(callback) or "", tuple(options), settings, is_ours)


def _option(field: str, hint: Any, default: Any) -> Option:
    info, kind = None, hint
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        info = next((note for note in notes if isinstance(note, OptionInfo | ArgumentInfo)), None)
    is_argument = isinstance(info, ArgumentInfo)
    names = _names(info) if info else []
    plain = f"--{field.replace('_', '-')}"
    if is_argument:
        shown = field.upper()
    elif names:
        shown = ", ".join(sorted(names, key=lambda name: name.startswith("--")))
    else:
        shown = f"{plain} / --no-{plain[2:]}" if kind is bool else plain
    variables = info.envvar if info else None
    return Option(
        field,
        shown,
        _kind(kind),
        tuple([variables] if isinstance(variables, str) else variables or ()),
        "" if info and info.show_default is False else _default(default),
        (info.help if info else "") or "",
        is_argument,
    )


def _names(info: OptionInfo | ArgumentInfo) -> list[str]:
    """As typer reads them: within `Annotated`, what stands where the default would be is the first name."""
    first = [info.default] if isinstance(info.default, str) else []
    return [*first, *(info.param_decls or ())]


def _kind(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return _kind(next(each for each in get_args(kind) if each is not type(None)))
    if get_origin(kind) in (list, tuple):
        return f"{_kind(get_args(kind)[0])}, several times"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(code(str(each.value)) for each in kind)
    words = {bool: "flag", int: "whole number", float: "number", str: "text", Path: "path"}
    return words.get(kind, str(getattr(kind, "__name__", kind)))


def _default(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if default is None or default is False or default == "":
        return ""
    if isinstance(default, enum.Enum):
        return str(default.value)
    if isinstance(default, bool):
        return "on"
    if isinstance(default, float) and default == int(default):
        return str(int(default))
    if isinstance(default, tuple | list):
        return ",".join(map(str, default))
    return str(default).replace(__version__, "VERSION")  # else every release would change the reference


def page() -> Page:
    found = list(commands())
    missing = [f"carrel {each.name} has no help" for each in found if not each.summary]
    missing += [
        f"carrel {each.name} has no example"
        for each in found
        if not each.examples and each.is_ours and each.name != "version"
    ]
    missing += [
        f"carrel {each.name} {option.shown} has no help" for each in found for option in each.options if not option.help
    ]
    introduction = (
        "`carrel COMMAND --help` shows the same. Exit codes are the same for all commands: 2 wrong usage, 3 refused,"
        " 4 not found, 5 conflict, 6 unavailable, 7 forbidden. An option wins over its environment variable."
        " The reason for each setting is in [settings.md](settings.md)."
    )
    index = table(
        ["command", "what it does"],
        [[f"[`carrel {each.name}`](#carrel-{each.name.replace(' ', '-')})", each.summary] for each in found],
    )
    return Page(
        "commands.md",
        document("Commands", introduction, index, *map(_section, found)),
        tuple(missing),
    )


def _section(command: Command) -> str:
    parts = [f"## carrel {command.name}", command.summary]
    if command.description:
        parts.append("\n".join(line.rstrip() for line in command.description.splitlines()))
    if command.examples:
        parts.append(f"```\n{command.examples}\n```")
    rows = [
        [code(each.shown), each.kind, code(each.default), " ".join(map(code, each.variables)), each.help]
        for each in sorted(command.options, key=lambda option: not option.is_argument)
    ]
    if rows:
        parts.append(table(["option", "value", "default", "environment", "meaning"], rows))
    return "\n\n".join(parts)
