"""PURE. Reads what others wrote, strictly. Everything wrong raises one error.

malformed    the error: which object, which field, which value, and what would be right
printable    the text of others, safe to print
nesting      how deeply JSON may be nested
fields       JSON, field by field
validation   what msgspec says of a document, in our words
addresses    who is meant by an e-mail address or a user name
secret_settings    secrets that an admin chooses
time         instants in RFC 3339, and for people
"""

from carrel.parsing.malformed import Malformed

__all__ = ["Malformed"]
