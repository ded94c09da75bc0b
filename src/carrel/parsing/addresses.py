"""Whether a text is the address or the user name of one person. Everything that reads one asks here.

Two people must never look alike, nor one person have two spellings that count as two. So a text is refused, not
corrected, if it looks like another one: with spaces or characters that are not visible, in another width or form of the
same letters (Unicode NFKC), or with letters of other scripts that look like Latin ones. Only the case does not matter.
"""

import re
import unicodedata

LONGEST_ADDRESS = 254
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_LATIN_LETTERS = frozenset("æœøßðþđł")
"""Letters of people's names that are no ASCII letter with a mark above or below."""


def is_address(email: str) -> bool:
    """Whether a text is an e-mail address of one person. The host is a name as in DNS (`xn--…`)."""
    name, _, host = email.partition("@")
    return bool(name) and len(email) <= LONGEST_ADDRESS and bool(_HOST.fullmatch(host)) and is_user_name(email)


def is_user_name(text: str) -> bool:
    """Whether a text may be the name of a user of the cluster, which need not be an address."""
    if not text or len(text) > LONGEST_ADDRESS or not text.isprintable() or " " in text:  # other spaces do not print
        return False
    return text.isascii() or (unicodedata.is_normalized("NFKC", text) and all(map(_is_latin, text.lower())))


def lowered(text: str) -> str:
    """Addresses are compared in lower case: identity providers and people write them differently.

    A text in another form stays as it is: in lower case, the sign for kelvin would become a plain k.
    """
    return text.lower() if text.isascii() or unicodedata.is_normalized("NFKC", text) else text


def normal(email: str) -> str:
    """The address that people type, as addresses are compared."""
    return lowered(email.strip())


def _is_latin(letter: str) -> bool:
    if letter.isascii() or letter in _LATIN_LETTERS:
        return True
    apart = unicodedata.normalize("NFD", letter)
    return len(apart) > 1 and apart[0].isascii() and apart[0].isalpha()
