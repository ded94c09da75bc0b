"""`carrel snapshot`."""

from dataclasses import dataclass

from carrel.cli.options import BesideClusterSettings
from carrel.settings import ContextSettings


@dataclass(frozen=True)
class SnapshotSettings(BesideClusterSettings, ContextSettings):
    """The cluster, and who knows what people used there."""


def snapshot(settings: SnapshotSettings) -> None:
    """Print the cluster's GPUs, pods and bookings as JSON, for `carrel simulate --from`.

    Who holds which GPU is in it, for how long that has been idle, and who waits. What people held and used in the last
    four weeks, hour by hour, is in it if you are logged in to the booking service.

    Nodes, people and pods are numbered, not named. Nothing is in it of what pods do: no images, labels, annotations or
    environment. Only GPU pods, and other pods that use CPU of nodes with GPUs. What is not in it as it is in the
    cluster is said on stderr.

    Examples:

      carrel snapshot > lab.json

      carrel simulate --from lab.json --add 8xNVIDIA-A100-SXM4-80GB:81920
    """
    from carrel.cli.cluster_reader import read_cluster
    from carrel.cli.cluster_snapshot import snapshot_of
    from carrel.cli.options import DataFormat
    from carrel.cli.output import print_data, print_lines
    from carrel.cli.past_use import past_use
    from carrel.settings import cluster_access

    carrel = read_cluster(settings, cluster_access(settings))
    carrel.one_unit()
    used, remark = past_use(settings.booking_settings(), carrel.options.now())
    taken = snapshot_of(carrel, carrel.activities, used)
    print_data(taken.document, DataFormat.JSON)
    print_lines(*taken.remarks, remark, err=True)
