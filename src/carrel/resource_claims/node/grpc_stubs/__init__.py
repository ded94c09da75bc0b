"""The kubelet's gRPC calls. The `.proto` files are ours and hold what Carrel uses of the public formats.

The Python files are generated from them (`make stubs`); a test generates them anew and compares.
"""
