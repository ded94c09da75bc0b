"""What all commands have in common: a table in groups, help, errors in three lines, and an end when nobody reads on.

A command is imported when it is run or asked for its help: the others cost nothing.
"""

import os
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from carrel import __version__
from carrel.command_errors import USAGE, command_failed
from carrel.option_fields import command, secrets_of

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class Entry(NamedTuple):
    """A command, or commands that have its name before theirs."""

    help: str
    """One line of `carrel --help`. It has 60 characters there."""
    run: str = ""
    """Its module and its function, whose docstring is the help of the command."""
    commands: Mapping[str, "Entry"] = {}
    had_options: bool = False
    """Whether options of it have moved into the configuration."""

    def function(self) -> Any:
        module, _, name = self.run.partition(":")
        return getattr(import_module(module), name)


def callback_of(function: Any) -> Any:
    """Return the function for typer: its options are the fields of the settings that it takes."""
    settings = get_type_hints(function).get("settings")
    return command(settings, function) if settings is not None else function


class Completion(NamedTuple):
    """A word that the shell may complete."""

    value: str
    help: str
    type: str = "plain"


class Command(TyperCommand):
    """A command whose wrong options are reported in three lines."""

    secrets: Mapping[str, str] = {}
    """Variable of the environment → what it gives."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        if self.secrets:
            with formatter.section("Secrets, which only the environment gives"):
                formatter.write_dl(list(self.secrets.items()))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _wrong_options(ctx, args):
            rest: list[str] = super().parse_args(ctx, args)
        return rest


class CommandWithMovedOptions(Command):
    """A component, whose options were more once. One that moved is refused with where it went."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from carrel.configuration.moved import moved_options

        if moved := moved_options(args):
            why = "\n".join(f"{each.option} {each.where}" for each in moved)
            advice = f"carrel config show {moved[0].field}" if moved[0].field else f"{ctx.command_path} --help"
            raise command_failed(f"{ctx.command_path} does not have {moved[0].option} any more", why, advice, USAGE)
        return super().parse_args(ctx, args)


class CommandGroup(TyperGroup):
    """`carrel`, or a group of its commands."""

    sections: Mapping[str, Mapping[str, Entry]]
    """By the headings of the help."""

    @property
    def rows(self) -> dict[str, Entry]:
        return {name: row for section in self.sections.values() for name, row in section.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.rows)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        row = self.rows.get(cmd_name)
        return row and _made(cmd_name, row)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.rows and not ctx.resilient_parsing:
            near = get_close_matches(args[0], self.rows, 1)
            why = f"Did you mean {near[0]}?" if near else "None of its commands is called like that."
            what = f"{ctx.command_path} has no command {args[0]!r}"
            raise command_failed(what, why, " ".join([ctx.command_path, *near, "--help"]), USAGE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.rows))
        for heading, rows in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{width}}", row.help) for name, row in rows.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        found = [Completion(name, row.help) for name, row in self.rows.items() if name.startswith(incomplete)]
        return found or [*Command.shell_complete(self, ctx, incomplete)]  # its options

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = args or ["--help"]
        with _wrong_options(ctx, args):
            rest: list[str] = super().parse_args(ctx, args)
        return rest

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _ends_unread():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _ends_unread():
            return super().invoke(ctx)


def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


def _every_command(
    is_version_asked: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What comes before the name of a command."""


def group(table: Mapping[str, Mapping[str, Entry]], help: str, *, is_first: bool = True) -> typer.Typer:
    """Return the commands of a table, by their headings. `is_first`: `carrel` itself."""
    cls = type("Commands", (CommandGroup,), {"sections": table})
    callback = _every_command if is_first else lambda: None
    more: dict[str, Any] = {"context_settings": HELP_OPTIONS, "callback": callback, "add_completion": is_first}
    return typer.Typer(name="carrel", cls=cls, rich_markup_mode=None, help=help, **more)


def _made(name: str, row: Entry) -> Any:
    """Return what typer runs."""
    if row.commands:
        app = group({"Commands": row.commands}, f"{row.help}.", is_first=False)
    else:
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        function = row.function()
        app.command(name, cls=_class_of(function, row))(callback_of(function))
    return typer.main.get_command(app)


def _class_of(function: Any, row: Entry) -> type[Command]:
    settings = get_type_hints(function).get("settings")
    secrets = secrets_of(settings).values() if settings is not None else ()
    given = {" or ".join(each.variables): each.help for each in secrets}
    return type("WithSecrets", (CommandWithMovedOptions if row.had_options else Command,), {"secrets": given})


# --- errors ----------------------------------------------------------------------------------------------------------


@contextmanager
def _wrong_options(ctx: Any, args: Sequence[str]) -> Iterator[None]:
    """What typer says of an option or argument, in three lines. It names its exceptions only in private modules."""
    path, given = ctx.command_path, list(args)
    try:
        yield
    except typer.TyperException as wrong:
        said: Any = wrong
    else:
        return
    param, what, why = getattr(said, "param", None), f"{path} cannot be called so", said.message
    if hasattr(said, "possibilities"):
        params = ctx.command.get_params(ctx)
        options = [name for each in params if not getattr(each, "hidden", False) for name in each.opts if "--" in name]
        begun = [each for each in options if each.startswith(said.option_name)]
        near = sorted(begun or said.possibilities or get_close_matches(said.option_name, options, 1))
        what = f"{path} has no option {said.option_name}"
        why = f"Did you mean {' or '.join(near)}?" if near else f"Its options are {', '.join(options)}."
    elif param is not None:
        name = max(param.opts, key=len) if param.param_type_name == "option" else param.name.upper()
        if (source := ctx.get_parameter_source(param.name)) is not None and source.name == "ENVIRONMENT":
            name = " or ".join([param.envvar] if isinstance(param.envvar, str) else param.envvar)
        is_missing = hasattr(said, "param_type")
        what = f"{path} needs {name}" if is_missing else f"{name} of {path} cannot be used"
        expected = said.message.removeprefix("Value error, ").replace("Input should be", "It should be")
        why = "\n".join(filter(None, [expected.partition(", unable to parse")[0], param.help]))
    elif hasattr(said, "option_name"):
        what = f"{said.option_name} of {path} cannot be used"
    elif "extra argument" in said.message:
        what = f"{path} takes no {given[-1]!r}"
    raise command_failed(what, why, f"{path} --help", USAGE)


@contextmanager
def _ends_unread() -> Iterator[None]:
    """If the program that reads the output has ended, as `head` does, the command ends, and that is no failure."""
    try:
        yield
    except BrokenPipeError:
        stdout = select.poll()
        stdout.register(sys.stdout.fileno(), 0)
        if not stdout.poll(0):
            raise  # it was another pipe
        # What is left in the buffer would be written once more at the end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
