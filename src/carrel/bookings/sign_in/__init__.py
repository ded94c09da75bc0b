"""Sign-in: who sends a request, and what they may do.

Reading order:

    authenticator                    finds the person of each request, from its session, token or cluster token
    secrets roles                    the secrets that people carry; which roles a person has
    oidc hub token_review            sign-in with an OpenID Connect provider, with a JupyterHub; tokens of the cluster
    reviewed_tokens                  tokens that the cluster or a hub is asked about, and their answers for a minute
    routes account_routes sign_in_pages     the HTTP routes: sign in and out, tokens, roles; their small pages
    request_guard rate_limiter       limits for every request, and security headers
    settings assembly                the options; the authenticator that they describe
"""
