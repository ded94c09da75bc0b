"""The steps that make the tables.

Until 0.1.0 is released there is one, which makes all of them. Afterwards each change is a step of its own, which names
the one before it, and a released step is never changed.
"""

OLDEST_LEVELS = {"0.1": "0001"}
"""Minor version of Carrel → the oldest level whose programs may use the tables that it makes.

Steps after that level only add, which a test checks: tables, columns that may be left out, indexes that refuse
nothing. A step that does something else begins a new minor version, with a line here that names the step's own level.
The line of a released version is never changed.
"""
