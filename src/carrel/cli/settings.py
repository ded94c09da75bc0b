"""The options of the commands for people, with kubectl's letters."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import typer

from carrel.settings import ClusterSettings, DialectSettings


class Format(Enum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True)
class QuestionSettings(DialectSettings, ClusterSettings):
    """One question to a cluster."""

    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of the pod; else that of the kubeconfig's context.")
    ] = ""
    output: Annotated[Format, typer.Option("--output", "-o", help="How it is shown.")] = Format.TABLE
    """JSON and YAML for programs; their fields do not change without notice."""


@dataclass(frozen=True)
class WhySettings(QuestionSettings):
    pod: Annotated[str, typer.Argument(help="The pod, as pod/NAME or NAME; without it, all that wait.")] = ""
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")] = False


@dataclass(frozen=True, kw_only=True)
class ExplainSettings(QuestionSettings):
    pod: Annotated[str, typer.Argument(help="The pod, as pod/NAME or NAME.")]


@dataclass(frozen=True)
class InspectSettings(DialectSettings, ClusterSettings):
    node: Annotated[str, typer.Argument(help="One node; without it, all.")] = ""
    details: Annotated[bool, typer.Option("--details", "-d", help="Also the pods of each node.")] = False
    output: Annotated[Format, typer.Option("--output", "-o", help="How it is shown.")] = Format.TABLE
    """JSON is what gpushare's extender answers, byte for byte."""


@dataclass(frozen=True)
class SchedulerConfigSettings:
    url: Annotated[str, typer.Option(help="Where kube-scheduler finds the extender.")] = "http://127.0.0.1:39999"
    """Beside it in the same pod."""
    kubeconfig: Annotated[str, typer.Option(help="Path of kube-scheduler's own kubeconfig, to be written in.")] = ""
    """Without it kube-scheduler uses its ServiceAccount."""
    gang_timeout: Annotated[
        int, typer.Option(help="The extender's --gang-timeout, in seconds.", min=1, envvar="CARREL_GANG_TIMEOUT")
    ] = 120
    """kube-scheduler waits a little longer than the extender does, else it would give up binds that succeed."""
