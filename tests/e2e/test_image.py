"""The image for a machine that the tests do not have: what can be seen without running it."""

from tools.image import contents, root_folders
from tools.image.binaries import MACHINES, binaries, check_binaries

NEEDED = ("python3.11", "libssl.so.3", "grpc/_cython", "msgspec/_core", "psycopg_binary/", "libsqlite3.so")


def test_the_image_for_arm64_has_programs_for_arm64_only() -> None:
    folder = root_folders.lower("arm64")
    check_binaries(folder, "arm64")
    found = [str(file.relative_to(folder)) for file, _ in binaries(folder)]
    assert [each for each in NEEDED if not any(each in name for name in found)] == []
    of_python = [name for name in found if name.startswith(contents.SITE)]
    assert {name.rpartition(".cpython-311-")[2] for name in of_python if ".cpython-" in name} == {
        "aarch64-linux-gnu.so"
    }


def test_both_images_have_the_same_packages_of_the_same_versions() -> None:
    found = []
    for architecture in MACHINES:
        folder = root_folders.lower(architecture)
        python = {each.name for each in (folder / contents.SITE).glob("*.dist-info")}
        debian = {each.name for each in (folder / "var/lib/dpkg/status.d").iterdir()}
        found.append((python, debian))
    assert found[0] == found[1]
