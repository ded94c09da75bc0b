"""Makes the text of others safe to print: in logs, Events and terminals.

A name, an annotation, a path or a header may hold line breaks that begin a forged line, escape sequences that rewrite
what a terminal shows, or characters that reverse the order of a text. Such characters are shown as in Python:
`\\n`, `\\x1b`, `\\u202e`. All that Unicode calls printable stays as it is.
"""


def printable(text: str, keep: str = "") -> str:
    """`keep`: characters that are left as they are, although they are not printable."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escaped(each) for each in text)


def printable_lines(text: str) -> str:
    """Make text safe to print that may have several lines."""
    return printable(text, keep="\n")


def spreadsheet_text(text: str) -> str:
    """Put a quote before a text that starts like a formula: a spreadsheet would run it, with the rights of the person
    who opens it."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


SIMPLER = {
    "–": "-",
    "…": "~",
    "·": "|",
    "✗": "x",
    "✓": "+",
    "°": " ",
    "█": "#",
    "▒": "+",
    "░": ".",
    **dict(zip("▁▂▃▄▅▆▇", "_.-:=+*", strict=True)),
}


def simpler(error: UnicodeError) -> tuple[str, int]:
    """Write what a terminal's encoding does not have in characters that all have: a handler for `codecs`. What has no
    simpler form is a question mark, so that columns keep their width."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(SIMPLER.get(each, "?") for each in error.object[error.start : error.end]), error.end


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
