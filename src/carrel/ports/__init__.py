"""What the verbs need from the world, as typed interfaces. No library names."""
