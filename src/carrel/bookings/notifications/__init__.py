"""Notifications to people about their bookings: by mail with a calendar entry, in chats, and by webhooks.

Reading order:

    messages          PURE: what a notification says
    choices           PURE: by which channels a person wants to be told, and of what
    quiet_hours       PURE: when people are told, and when they are reminded
    buttons           PURE: links in messages of which each does one thing, once
    posts             PURE: what each chat is sent for a message
    notifier          makes notifications from the log and from bookings that end soon; sends what is due
    channels mail     what the lab has; posts messages, sends mails
    own_choices       what a person may choose: checked, kept, tried
    destinations      where messages may be posted at a person's wish
    watches           records in the log that a pod lost its GPU, or a booking lacks GPUs, so that people are notified
    settings
"""
