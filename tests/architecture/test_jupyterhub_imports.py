"""The module runs in the hub's process, from an image without the libraries of Carrel's components."""

import subprocess
import sys

NOT_IN_THE_IMAGE = (
    "aiosqlite",
    "fastapi",
    "grpc",
    "psycopg",
    "pynvml",
    "rich",
    "starlette",
    "typer",
    "uvicorn",
    "uvloop",
)


def test_the_module_needs_no_library_of_the_components() -> None:
    without = f"import sys; sys.modules.update(dict.fromkeys({NOT_IN_THE_IMAGE!r})); import carrel.jupyterhub"

    subprocess.run([sys.executable, "-c", without], check=True, capture_output=True)
