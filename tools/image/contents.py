"""What is in Carrel's image. `make image`, the Containerfile and the end-to-end tests all read this list.

Only the standard library is imported: the Containerfile runs it before anything is installed.
"""

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PYTHON_PACKAGES = Path(__file__).parent / "requirements.lock"
"""With hashes, for Debian's Python on amd64 and arm64. `make lock` writes it; its versions are those of the tests."""

PYTHON = "3.11"
DEBIAN_PACKAGES = (
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"),
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libcrypt1"),
    *("libssl3", "ca-certificates"),
    *("libffi8", "libuuid1", "liblzma5", "libbz2-1.0", "libsqlite3-0"),
)
"""Python, the C libraries that it and the Python packages are linked with, TLS, and what modules of Python need."""

ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The word of Debian and of image registries → the word of Python packages."""
GLIBC_MINOR = 36
"""Debian 12 has glibc 2.36: Python packages that need no newer one can be used."""

UNUSED_FOLDERS = (
    *("usr/share/doc", "usr/share/man", "usr/share/lintian", "usr/share/locale", "usr/share/info", "usr/share/bug"),
    *("usr/share/doc-base", "usr/share/applications", "usr/share/pixmaps", "usr/share/binfmts", "usr/share/gdb"),
    *("usr/sbin", "sbin", "usr/lib/python3.11/lib2to3", "usr/lib/python3.11/pydoc_data"),
    "usr/lib/python3.11/ensurepip",
)
UNUSED_SUFFIXES = (".pyi", ".pyx", ".pxd", ".c", ".h", ".a", ".exe")
"""Sources of compiled modules, and types for developers."""
SITE = "usr/lib/python3/dist-packages"
"""Where Debian's Python looks for packages."""

USER = 65532
"""Not root: the agent alone runs as root, because the kubelet's folders are root's, and its manifest says so."""
FILES = {
    "etc/passwd": f"root:x:0:0:root:/root:/sbin/nologin\ncarrel:x:{USER}:{USER}:carrel:/nonexistent:/sbin/nologin\n",
    "etc/group": f"root:x:0:\ncarrel:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
    "usr/local/bin/carrel": "#!/usr/bin/python3\nfrom carrel.__main__ import main\n\nmain()\n",
}
LINKS = {"usr/bin/python3": "python3.11"}
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
"""What the installation of ca-certificates would write: all authorities in one file."""
ENTRY_POINT = ("carrel",)
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "SSL_CERT_FILE": f"/{CERTIFICATES}",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}


def version() -> str:
    found = re.search(r'__version__ = "(.+)"', (CHECKOUT / "src/carrel/__init__.py").read_text())
    assert found is not None
    return found[1]


def labels() -> dict[str, str]:
    return {
        "org.opencontainers.image.title": "carrel",
        "org.opencontainers.image.description": "Books, shares and schedules the GPUs of a Kubernetes cluster.",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": version(),
    }
