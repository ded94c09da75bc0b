"""What GPUs were held and used for, by the hour and the day, for three years.

Reading order:

    sums            what is kept, and how it is asked for
"""
