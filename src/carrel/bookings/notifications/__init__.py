"""Notifications to people about their bookings: by mail with a calendar entry, and by a signed webhook.

Reading order:

    messages          PURE: what a notification says
    notifier          makes notifications from the log and from bookings that end soon; sends what is due
    channels          by mail, by signed posts
    watches           records in the log that a pod lost its GPU, or a booking lacks GPUs, so that people are notified
    settings
"""
