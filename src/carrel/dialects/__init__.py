"""PURE. The words by which pods ask for GPUs and by which Carrel answers: each foreign word is spelled once, here.

Reading is strict and raises only `Malformed`; writing gives exactly what the peers read.
"""
