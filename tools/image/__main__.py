"""`python -m tools.image`: Carrel's image as a file, or, for the Containerfile, as a folder."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.debian import machine_architecture
from testbed.tools import Missing
from tools.image import contents, root_folders
from tools.image.binaries import check_binaries
from tools.image.carrel_image import carrel_image

MB = 1_000_000


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tools.image", description=__doc__)
    parser.add_argument("--architecture", choices=sorted(contents.ARCHITECTURES), default=machine_architecture())
    parser.add_argument("--name", default=f"carrel:{contents.version()}", help="name and tag (default %(default)s)")
    parser.add_argument("--output", type=Path, help="the file to write (default dist/carrel-VERSION-ARCHITECTURE.tar)")
    parser.add_argument("--folder", type=Path, help="write the files of the image into this folder instead")
    arguments = parser.parse_args(words)
    try:
        if arguments.folder:
            shutil.copytree(root_folders.lower(arguments.architecture), arguments.folder, symlinks=True)
            root_folders.upper(arguments.folder, arguments.architecture)
            check_binaries(arguments.folder, arguments.architecture)
            return 0
        image = carrel_image(arguments.architecture, arguments.name)
    except Missing as problem:
        print(f"python -m tools.image: {problem}", file=sys.stderr)
        return 1
    default = contents.CHECKOUT / "dist" / f"carrel-{contents.version()}-{arguments.architecture}.tar"
    file: Path = arguments.output or default
    file.parent.mkdir(parents=True, exist_ok=True)
    image.write(file)
    unpacked = sum(layer.unpacked_bytes for layer in image.layers)
    print(f"{file}: {image.name}, {file.stat().st_size / MB:.0f} MB, {unpacked / MB:.0f} MB unpacked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
