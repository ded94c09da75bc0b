"""The pages: what people see of the bookings and of the cluster, made on the server.

    desk        what the pages ask of the rest, as one value
    shell       templates, the frame around every page, static files
    home timeline_page booking_page map_page usage_page admin_page    one module per page: its routes
    timeline cluster_map heat                                         pictures: data in, SVG out
    wishes phrases fields                                             rule chips, words, what forms say

Every page works without a script, except that the map does not change by itself. Scripts add live rule chips, dragging
and arrow keys. Nothing is loaded from another host; nothing is inline, so the policy of content can be strict.
"""

from carrel.bookings.pages.routes import install_pages
from carrel.bookings.pages.services import ClusterSight, PagesDesk

__all__ = ["ClusterSight", "PagesDesk", "install_pages"]
