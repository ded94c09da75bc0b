"""Which modules a program has loaded after some lines of code, asked of fresh interpreters.

What all of them import is imported once: each goes on in a fork of that interpreter.
"""

import json
import subprocess
import sys
from collections.abc import Mapping

FORKS = """
import json, os, sys
exec({shared!r})
for name, code in {codes!r}.items():
    child = os.fork()
    if not child:
        exec(code)
        print(json.dumps([name, list(sys.modules)]), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{{name}} failed")
"""


def loaded_modules(shared: str, codes: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the names of all modules that are loaded after `shared` and one of the codes, by the name of the code."""
    script = FORKS.format(shared=shared, codes=dict(codes))
    lines = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout
    return {name: set(modules) for name, modules in map(json.loads, lines.splitlines())}
