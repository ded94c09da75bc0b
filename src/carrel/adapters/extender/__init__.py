"""kube-scheduler's HTTP calls, on the Scheduler port. Read it in this order:

questions    bytes into a pod and node names, quickly
answers      which nodes will do, into bytes, quickly
desk         one answer per verb; which words on which prefix; drains
app          the routes
metrics      what is counted, and what the ledger shows
"""

from carrel.adapters.extender.app import extender_app
from carrel.adapters.extender.desk import Desk, Staff
from carrel.adapters.extender.metrics import Metrics

__all__ = ["Desk", "Metrics", "Staff", "extender_app"]
