"""The image with Carrel has what Carrel imports, and nothing of what only its developers use."""

from pathlib import Path

from testbed.carrel_image import STDLIB, parts


def test_the_image_has_what_carrel_needs_and_no_more() -> None:
    places = set(parts())
    packages = {place.parts[5] for place in places if place.is_relative_to(STDLIB / "site-packages")}

    assert {"carrel", "typer", "msgspec", "pynvml.py", "grpc", "psycopg_binary"} <= packages
    assert not {"pytest", "mypy", "ruff", "playwright"} & packages
    assert Path("usr/local/bin/python3") in places
    assert Path("usr/local/lib/libc.so.6") in places
    assert [place for place in places if place.name.startswith("ld-linux")]


def test_the_image_has_the_files_of_the_demo() -> None:
    assert STDLIB / "site-packages/carrel/demo/examples/cluster.yaml" in parts()
