"""How other components ask the booking service, and what they remember of its answers."""
