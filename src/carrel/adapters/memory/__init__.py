"""A small Kubernetes API server in one process: for the demo, for tests, and for playing.

It keeps objects in memory and runs no controllers except the ones that deletion needs. Read it in this order:

    kinds        what is served                     store       objects, versions, history
    calls        what a request asks                reads       get, list, watch
    objects      rules for every kind               writes      create, update, patch
    rules, pods  rules for one kind                 deletion    deletion, and (collector) what goes with it
    handler      one call in, one answer out        http        the same on a socket
"""

from carrel.adapters.memory.handler import EmbeddedApi, Settings

__all__ = ["EmbeddedApi", "Settings"]
