"""Pure decisions: who may hold which card, when, and why not.

Nothing in here does I/O, reads a clock, an environment variable or a random source; time and chance are passed in.
Only the standard library is imported (a test enforces it).
"""
