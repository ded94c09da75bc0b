"""One folder per process: how the world comes in. None imports another."""
