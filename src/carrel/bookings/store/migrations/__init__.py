"""How the tables came to be, in steps that are never changed once released. Each names the one before it."""
