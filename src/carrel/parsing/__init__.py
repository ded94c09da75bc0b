"""PURE. Reading what others wrote: JSON fields, instants, and the one error that is raised when it is wrong."""

from carrel.parsing.malformed import Malformed

__all__ = ["Malformed"]
