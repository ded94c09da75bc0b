"""The steps that make the tables. A released step is never changed. Each names the one before it."""
