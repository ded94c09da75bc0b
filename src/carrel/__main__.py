"""The one command: `carrel <door>`."""

import typer

app = typer.Typer(no_args_is_help=True, add_completion=True, help="Books, shares and schedules the GPUs of a Kubernetes cluster.")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
