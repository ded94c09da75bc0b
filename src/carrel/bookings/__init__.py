"""The booking service: who books which GPUs, and when. It has an API, pages, notifications, and MAIA's addresses.

A booking is the right of a person or a group to a number of GPUs of one model from a start to an end. The rules say who
may book what; the calendar says whether there is room. Bookings are kept in SQLite or PostgreSQL; which GPUs there are
comes from the cluster or from a file. Other components watch the bookings, which this one writes into the cluster as
objects; where bookings are made elsewhere, they ask whether a person has an active booking (`client`).

Reading order:

    rules calendar capacity icalendar         PURE: the table of rules, what is free, what can be booked
    maintenance                               PURE: which GPUs are closed for a while, and whom that hits
    groups                                    PURE: groups
    records people                            what is stored, the store's interface, persons and their roles
    inventory                                 which GPUs there are: from the cluster, or from a file
    commands queries                          create, change and cancel bookings; read them
    group_commands maintenance_commands       who is in a group; set maintenance
    removal                                   end all that a person has
    imports                                   takes over bookings from another system
    advice                                    PURE: who has the GPUs that a booking would need; commands that would work
    mirror                                    bookings as objects of the cluster: what they should be; writing them
    store/                                    SQLite or PostgreSQL
    sign_in/                                  who calls, and what they may do
    button_acts                               what buttons in messages do
    usage/                                    what GPUs were held and used for, by the hour and the day
    cluster_view                              the cluster as people see it, and a person's own pods
    wording                                   times, amounts and models as text
    lab_configuration                         the configuration, as admins see and change it
    service                                   what every route needs
    api/ pages/ notifications/                for programs, for people in a browser, for mailboxes
    client                                    how other components ask this one
    health app                                probes and metrics; all routes on one app
    settings entry_point run                  one process
"""
