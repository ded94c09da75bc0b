"""A JupyterHub in front of Carrel. With Zero to JupyterHub, this is `hub.extraConfig`: see docs/jupyterhub.md."""

import os

c = get_config()

c.JupyterHub.spawner_class = "carrel.jupyterhub.CarrelSpawner"
c.CarrelSpawner.booking_url = os.environ.get("CARREL_BOOKING_URL", "http://carrel-booking.carrel")
