"""The web pages of the booking service, rendered on the server.

Reading order:

    layout routes              templates, the frame around every page, errors as pages, static files
    home_page timeline_page booking_page map_page usage_page    one module per page: its routes
    after_booking recent_losses    what two of these pages say: what now, and what happened
    account_page               oneself: the zone of times, messages
    button_page                what a button in a message does, for people who are not signed in too
    admin_page maintenance_page log_page configuration_page    the same for admins
    timeline cluster_map usage_chart heat_map      pictures: data in, SVG out (pure)
    forms                      what forms send, and the feedback on it

Every page works without scripts, except that the map does not update by itself. Scripts add live rule checks, dragging
and arrow keys. Nothing is loaded from another host and nothing is inline, so the content security policy is strict.
"""

from carrel.bookings.pages.routes import install_pages

__all__ = ["install_pages"]
