"""kube-apiserver's questions about pods, over HTTP. Read it in this order:

questions    bytes into a review and its pod, strictly
desk         one answer per path; what is said when something is wrong
app          the routes
metrics      what is counted
"""

from carrel.adapters.webhook.app import webhook_app
from carrel.adapters.webhook.desk import ReviewDesk
from carrel.adapters.webhook.metrics import Metrics, Watched

__all__ = ["Metrics", "ReviewDesk", "Watched", "webhook_app"]
