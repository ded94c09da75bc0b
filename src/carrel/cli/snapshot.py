"""`carrel snapshot`."""

from carrel.settings import ContextSettings


def snapshot(settings: ContextSettings) -> None:
    """Print the cluster's GPUs, pods and bookings as JSON, for `carrel simulate --from`.

    Who holds which GPU is in it, and who waits. Nodes, people and pods are numbered, not named. Nothing is in it of
    what pods do: no images, labels, annotations or environment. Only GPU pods, and other pods that use CPU of nodes
    with GPUs. What is not in it as it is in the cluster is said on stderr.

    Examples:

      carrel snapshot > lab.json

      carrel simulate --from lab.json --add 8xNVIDIA-A100-SXM4-80GB:81920
    """
    from carrel.cli.cluster_reader import read_cluster
    from carrel.cli.cluster_snapshot import snapshot_of
    from carrel.cli.options import DataFormat
    from carrel.cli.output import print_data, print_lines
    from carrel.settings import cluster_access

    carrel = read_cluster(settings, cluster_access(settings))
    carrel.one_unit()
    taken = snapshot_of(carrel)
    print_data(taken.document, DataFormat.JSON)
    if taken.remarks:
        print_lines(*taken.remarks, err=True)
