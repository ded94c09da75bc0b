"""A cluster that is not there: simulated cards from a file, and kubelets that only say that pods run."""
