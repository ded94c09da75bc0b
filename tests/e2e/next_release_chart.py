"""The release that comes after this one, as an image and a chart: one migration more, one field more in a claim."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import yaml

from tests.e2e.chart import CHART
from tests.kit.next_release import VERSION, added_files
from tools.image import contents
from tools.image.archive import Layer, OciImage

FIELD = "colour"


def next_image(present: OciImage) -> OciImage:
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch) / contents.SITE / "carrel"
        for path, text in added_files().items():
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            (package / path).write_text(text)
        # Compiled files are not compared with their sources: the old one is taken away, as a layer does that.
        compiled = package / "__pycache__"
        compiled.mkdir()
        (compiled / f".wh.__init__.cpython-{contents.PYTHON.replace('.', '')}.pyc").touch()
        return replace(present, name=f"carrel:{VERSION}", layers=[*present.layers, Layer.of(Path(scratch))])


def next_chart(folder: Path) -> Path:
    made = folder / "carrel"
    shutil.copytree(CHART, made)  # with the files behind the link
    about = yaml.safe_load((made / "Chart.yaml").read_text())
    (made / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": VERSION, "appVersion": VERSION}))
    definitions = list(yaml.safe_load_all((made / "files/crds.yaml").read_text()))
    for each in definitions:
        if each["spec"]["names"]["kind"] == "GpuClaim":
            schema = each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            schema["properties"]["spec"]["properties"][FIELD] = {"type": "string"}
    (made / "files/crds.yaml").write_text(yaml.safe_dump_all(definitions))
    return made
