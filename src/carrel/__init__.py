"""Carrel books, shares and schedules the GPUs of a Kubernetes cluster, on one ledger.

The folder tree is the architecture; imports point down this list:

    doors       one folder per process: how the world comes in
    adapters    each implements one port with a real library or device
    usecases    the verbs: core + ports, no library names
    ports       what the verbs need from the world, as typed interfaces
    protocols   PURE: the wire words of the dialects, each spelled once
    core        PURE: the decisions
"""

__version__ = "0.1.0"
