"""Which pods a booking covers now, and what people are told about it. The rule itself is `ledger/coverage.py`.

Reading order:

    covered_pods                     which pods a booking covers now
    coverage_words coverage_reader   what people are told about it
    booking_writer     writes the object of a booking, while others may write it too
"""
