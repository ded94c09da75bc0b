"""Programs for people who work on Carrel; they are not part of the product."""
