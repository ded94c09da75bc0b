"""What every component that serves HTTP shares.

Reading order:

    serving       starts and stops a server
    bodies        reads the body of a request, up to a limit
    post_routes   answers a few POST paths without the cost of a framework
    health        /healthz, /readyz and /metrics
    metrics       what the metrics of every component have in common
    problems      error responses (RFC 9457)
"""
