"""The error for input of a peer or a user that cannot be understood."""


class Malformed(ValueError):
    """Names the object, the field, the value and what would be right, so that the user can correct it at once.

    >>> raise Malformed("pod lab/train", "annotations['gpu-fraction']", "1.5", "a number between 0 and 1")
    Traceback (most recent call last):
    Malformed: pod lab/train: annotations['gpu-fraction'] is '1.5'; expected a number between 0 and 1
    """

    def __init__(self, subject: str, field: str, value: object, expected: str) -> None:
        self.subject = subject
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"{subject}: {field} is {_shown(value)}; expected {expected}")


def _shown(value: object) -> str:
    # A forged value may be megabytes long; the message must be readable in an Event or a log line.
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
