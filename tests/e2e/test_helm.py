import json
import os
import subprocess
from pathlib import Path

from testbed import tools
from testbed.control_plane import ApiServer
from tests.e2e.pods import is_gone

CHART = "apiVersion: v2\nname: note\nversion: 0.1.0\nkubeVersion: '>=1.20.0-0'\n"
TEMPLATE = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}
data:
  colour: {{ .Values.colour | quote }}
"""


def test_helm_installs_lists_and_takes_away_a_release(api_server: ApiServer, tmp_path: Path) -> None:
    chart = tmp_path / "note"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(CHART)
    (chart / "templates/note.yaml").write_text(TEMPLATE)
    home = os.environ | {"HOME": str(tmp_path), "KUBECONFIG": str(api_server.kubeconfig)}

    def helm(*arguments: str) -> str:
        done = subprocess.run([tools.helm(), *arguments], env=home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    path = "/api/v1/namespaces/default/configmaps/first"
    helm("install", "first", str(chart), "--set", "colour=blue")
    assert api_server.call("GET", path)["data"] == {"colour": "blue"}
    assert [release["name"] for release in json.loads(helm("list", "--output", "json"))] == ["first"]
    helm("uninstall", "first")
    assert is_gone(api_server, path)
