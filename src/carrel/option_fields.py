"""Fields of settings: each is an option of a command, with its default, its help and the variable that may give it too.

    port: int = setting(39998, "Port to listen on; 0: any free one.", min=0, max=65535)

`setting` is for components, which are configured by their environment: the variable is CARREL_ and the field's name.
`secret` is only in the environment: every user of the machine sees the options of its processes.
`option` and `argument` are for commands that people type. Words besides the help are names of the option, as
`--output`, `-o`; what is named by keyword is typer's. Nothing else reads the environment; an option wins over it.
"""

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

S = TypeVar("S")
T = TypeVar("T")

INFO, SECRET = "option", "secret"
OF_FIELD = "CARREL_"


@dataclass(frozen=True, slots=True)
class Secret:
    """A setting that only the environment gives."""

    help: str
    variables: Sequence[str]
    """The first that is there counts."""


def setting(default: T, help: str, *names: str, **more: Any) -> T:
    return option(default, help, *names, envvar=OF_FIELD, **more)


def option(default: T, help: str, *names: str, **more: Any) -> T:
    made: T = field(default=default, metadata={INFO: typer.Option(*names, help=help, **more)})
    return made


def argument(default: T, help: str, **more: Any) -> T:
    made: T = field(default=default, metadata={INFO: typer.Argument(help=help, **more)})
    return made


def secret(help: str, *variables: str) -> str:
    made: str = field(default="", repr=False, metadata={SECRET: (help, variables)})
    return made


def secrets_of(settings: type[Any]) -> dict[str, Secret]:
    """Return what is known of each field that only the environment gives."""
    found = {each.name: each.metadata[SECRET] for each in fields(settings) if SECRET in each.metadata}
    return {name: Secret(help, variables or (variable_of(name),)) for name, (help, variables) in found.items()}


def variable_of(name: str) -> str:
    return f"{OF_FIELD}{name.upper()}"


def variables_of(settings: type[Any]) -> frozenset[str]:
    """Return the environment variables that give any of these settings."""
    of_options = [option.envvar or () for option in options_of(settings).values()]
    of_secrets = [name for each in secrets_of(settings).values() for name in each.variables]
    return frozenset(of_secrets).union(*((each,) if isinstance(each, str) else each for each in of_options))


def options_of(settings: type[Any]) -> dict[str, OptionInfo | ArgumentInfo]:
    """Return what typer knows of each field, also of one whose type is annotated with it."""
    hints = get_type_hints(settings, include_extras=True)
    found: dict[str, OptionInfo | ArgumentInfo] = {}
    for each in fields(settings):
        if SECRET in each.metadata:
            continue
        info = each.metadata.get(INFO) or next(iter(getattr(hints[each.name], "__metadata__", ())), typer.Option())
        if info.envvar == OF_FIELD:
            info.envvar = variable_of(each.name)
        found[each.name] = info
    return found


def command(settings: type[S], run: Callable[[S], None]) -> Callable[..., None]:
    """Return the command of a component: its options are the fields of its settings, its help is `run`'s docstring."""

    def run_with_options(**options: object) -> None:
        for name, info in secrets_of(settings).items():
            options[name] = next(filter(None, map(os.environ.get, info.variables)), "")
        run(settings(**options))

    # typer knows no `NewType`: for it such an option is text.
    hints = {name: getattr(hint, "__supertype__", hint) for name, hint in get_type_hints(settings).items()}
    hints |= {name: Annotated[hints[name], info] for name, info in options_of(settings).items()}
    run_with_options.__doc__ = run.__doc__
    run_with_options.__name__ = run.__name__
    run_with_options.__annotations__ = hints
    signature = inspect.signature(settings)
    secrets = secrets_of(settings)
    given = [each for name, each in signature.parameters.items() if name not in secrets]
    parameters = [each.replace(annotation=hints[each.name]) for each in given]
    run_with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] # for typer
    return run_with_options
