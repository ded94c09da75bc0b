"""Notifications to people about their bookings: by mail with a calendar entry, and by a signed webhook.

Reading order:

    messages          PURE: what a notification says
    notifier          makes notifications from the log and from bookings that end soon; sends what is due
    channels          by mail, by signed posts
    revocation_watch  records in the log that a pod lost its GPU, so that its owner is notified
    overbooked_watch  the same of bookings that lack GPUs, because a node is cordoned for example
    settings
"""
