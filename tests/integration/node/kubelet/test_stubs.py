"""The stubs of the kubelet's calls are those that our own .proto files generate."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
FOLDERS = (Path("carrel/node/kubelet/grpc_stubs"), Path("carrel/resource_claims/node/grpc_stubs"))


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_the_generated_stubs_are_those_of_the_proto_files(folder: Path, tmp_path: Path) -> None:
    source, outputs = ROOT / "src", ("--python_out", "--pyi_out", "--grpc_python_out")
    protos = sorted((source / folder).glob("*.proto"))
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", *(f"{out}={tmp_path}" for out in outputs), *protos],
        check=True,
    )

    made = {path.name: path.read_text() for path in (tmp_path / folder).iterdir()}
    kept = {path.name: path.read_text() for path in (source / folder).glob("*_pb2*.py*")}
    assert kept == made
