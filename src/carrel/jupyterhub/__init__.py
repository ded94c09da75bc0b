"""For the image of a JupyterHub: a spawner that knows what Carrel does with notebooks, and a spawn page with bookings.

It runs inside the hub, so it imports little: the hub, KubeSpawner, and from Carrel the words on pods
(`carrel.dialects`, for which msgspec is needed). `docs/jupyterhub.md` says how to install it.

Reading order:

    hand_over                what is seen of a server's pod while Carrel hands it over to CPU
    spawner                  `CarrelSpawner`: waits for the successor, moves the route, withdraws a hand-over, stretches
                             the time-out while a booked GPU is given back; writes in the cluster about a successor
    moving                   the page that people see meanwhile
    startable booking_service  what a person may start now; asking for it
    profiles                 `carrel_profiles`: the choices of the spawn page; its words
    progress                 what the page says while a server starts
"""

from carrel.jupyterhub.profiles import carrel_profiles
from carrel.jupyterhub.spawner import CarrelSpawner

__all__ = ["CarrelSpawner", "carrel_profiles"]
