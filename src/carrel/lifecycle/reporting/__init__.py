"""What the controller writes for people and for monitoring; no decision reads it.

Reading order:

    coverage_correction        makes pods, Leases and bookings say which booking covers which pod
    claim_status pod_events    writes the status of GpuClaims, and why pods wait
    invariant_check gpu_counts gpu_use      what is counted for Prometheus
"""
