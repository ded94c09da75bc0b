"""Pods through the real kube-scheduler, with Carrel and without: `make bench-e2e`.

real_cluster   etcd, kube-apiserver, kube-scheduler and extenders as processes; nodes are only objects
bulk           writes thousands of objects straight into etcd
rounds         one round: pods that wait, a kube-scheduler that starts, and what most Bindings cost
start          how long an extender takes to be ready in a large, full cluster
results        the table, and the file in which results are kept
__main__       the options
"""
