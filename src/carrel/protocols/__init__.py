"""Pure wire words: one file per dialect, each foreign word spelled once.

Reading is strict and raises only `Malformed`; writing gives exactly what the peers read.
Imports the standard library and `carrel.core` only (a test enforces it).
"""

from carrel.protocols.malformed import Malformed

__all__ = ["Malformed"]
