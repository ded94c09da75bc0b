"""A release that comes after this one, for tests of upgrades: the same program with one more migration that only adds.

There is no older release to start from. So the present program takes the place of the older one, and what a patch
release may change is made here.
"""

import re
import shutil
from pathlib import Path

import carrel
from carrel.bookings.store import migrations

VERSION = f"{carrel.__version__.rpartition('.')[0]}.999"
VERSIONS = Path("bookings/store/migrations/versions")
"""Within the package."""
STEP = '''"""What the next release adds."""

import sqlalchemy as sa
from alembic import op

revision = "{level}"
down_revision = "{before}"


def upgrade() -> None:
    op.add_column("bookings", sa.Column("colour", sa.String(32), nullable=False, server_default="blue"))
    op.create_table("colours", sa.Column("name", sa.String(32), nullable=False), sa.PrimaryKeyConstraint("name"))
'''


def present_level() -> str:
    found = Path(str(migrations.__file__)).parent.glob("versions/v*.py")
    return max(each.name.removeprefix("v").partition("_")[0] for each in found)


def next_level() -> str:
    return f"{int(present_level()) + 1:04}"


def added_files() -> dict[Path, str]:
    """What differs from the present release, within the package."""
    source = Path(str(carrel.__file__)).read_text()
    version = re.sub(r'__version__ = ".+"', f'__version__ = "{VERSION}"', source)
    step = STEP.format(level=next_level(), before=present_level())
    return {Path("__init__.py"): version, VERSIONS / f"v{next_level()}_next_release.py": step}


def next_release(folder: Path) -> Path:
    """A folder for PYTHONPATH."""
    package = folder / "carrel"
    shutil.copytree(Path(str(carrel.__file__)).parent, package)
    for path, text in added_files().items():
        (package / path).write_text(text)
    return folder
