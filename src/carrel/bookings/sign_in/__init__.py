"""Sign-in: who sends a request, and what they may do.

Reading order:

    authenticator                    finds the person of each request, from its session, token or cluster token
    secrets                          the secrets that people carry
    oidc hub token_review            sign-in with an OpenID Connect provider, with a JupyterHub; tokens of the cluster
    routes account_routes sign_in_pages     the HTTP routes: sign in and out, tokens, roles; their small pages
    request_guard                    limits for every request, and security headers
    settings assembly                the options; the authenticator that they describe
"""
