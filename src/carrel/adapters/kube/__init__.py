"""The thin Kubernetes client. Read it in this order:

config, credentials   where the API server is and who we are     views       what lists and watches decode into
tls, http             the transport over sockets                 store       the objects of one kind, indexed
answers, client       the verbs of the Cluster port              reflector   keeps a store equal to the server
pace                  time and chance, passed in                 queue       keys to look after, later and later
leader                at most one process leads
"""

from carrel.adapters.kube.client import Client
from carrel.adapters.kube.config import Access, access_from, access_to
from carrel.adapters.kube.http import HttpTransport

__all__ = ["Access", "Client", "HttpTransport", "access_from", "access_to"]
