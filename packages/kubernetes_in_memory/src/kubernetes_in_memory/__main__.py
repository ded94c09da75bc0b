"""`python -m kubernetes_in_memory`: the embedded API as a process."""

import typer

from kubernetes_in_memory.command import api_command

app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
app.command()(api_command("python -m kubernetes_in_memory"))


def main() -> None:
    app(prog_name="kubernetes-in-memory")


if __name__ == "__main__":
    main()
