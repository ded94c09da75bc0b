"""What GPUs were held and used for, by the hour and the day, for three years.

Reading order:

    sums        PURE: what is kept, and how it is asked for
    counter     PURE: counts what is held and used, and keeps it until it is written
    looks       looks at the cluster
    recorder    counts and writes, in every replica
    figures     PURE: booked, held, active and idle side by side
    report      these, as one person may see them
"""
