"""What every component that serves HTTP shares.

Reading order:

    asgi              the types of ASGI, and answers that a server gives by itself
    limits            what one caller may take of a server
    health            /healthz, /readyz and /metrics
    open_connections  who is connected, and who has to go when there are too many
    connection        one connection, with limits of size and time
    serving           starts and stops a server, which accepts connections
    tls_files         the certificate of a server, and the authority of its callers, which change while a process runs
    callers           who may call
    post_routes       POST paths that are answered with JSON; reads the body of a request, up to a limit
    metrics           what the metrics of every component have in common
    problems          error responses (RFC 9457)
"""
