"""Carrel's image: two layers, and what `contents` says about them."""

import tempfile
from pathlib import Path

from testbed.debian import machine_architecture
from testbed.tools import locked
from tools.image import contents, root_folders
from tools.image.archive import Layer, OciImage
from tools.image.binaries import check_binaries


def carrel_image(architecture: str = "", name: str = "") -> OciImage:
    architecture = architecture or machine_architecture()
    with tempfile.TemporaryDirectory() as scratch:
        root_folders.upper(Path(scratch), architecture)
        above = Layer.of(Path(scratch))
    return OciImage(
        name or f"carrel:{contents.version()}",
        architecture,
        [_lower_layer(architecture), above],
        contents.USER,
        contents.ENTRY_POINT,
        contents.ENVIRONMENT,
        contents.labels(),
    )


def _lower_layer(architecture: str) -> Layer:
    """Kept beside its folder."""
    folder = root_folders.lower(architecture)
    kept = folder.parent / f"{folder.name}.layer"
    with locked("image-layer"):
        if not kept.exists():
            check_binaries(folder, architecture)
            Layer.of(folder).keep(kept)
        return Layer.kept(kept)
