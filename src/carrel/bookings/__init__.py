"""The booking service: who books which GPUs, when. An API, pages, notifications, and MAIA's own addresses.

Reading order:

    rules calendar capacity tiers   PURE: who may book what and when, what is free, what there is
    records people                  what is kept, and of whom
    commands queries                book, change, cancel; look
    store/                          SQLite or PostgreSQL
    sign_in/                        who calls, and what they may do
    api/ pages/ notifications/      what programs, people and mailboxes see
    client/                         how other components ask this one
    app run settings command        one process
"""
