"""The pages around signing in: the form of `--dev`, the question of `carrel login`, and failures.

Each is written as if the service had its host for itself; `page` adds the base path to every link.
"""

import re
from collections.abc import Iterable
from datetime import timedelta
from html import escape
from urllib.parse import urlencode

from starlette.responses import HTMLResponse

from carrel.bookings.sign_in.authenticator import SignInOptions
from carrel.bookings.sign_in.request_guard import content_security

STYLESHEET = "/static/carrel.css"
WAYS = {"oidc": "Sign in with your identity provider", "hub": "Sign in with JupyterHub"}


def page(options: SignInOptions, title: str, body: str, status: int = 200, form_action: str = "") -> HTMLResponse:
    """`body` is HTML in which user input is already escaped."""
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)} · Carrel</title><link rel="stylesheet" href="{STYLESHEET}"></head>'
        f'<body><main class="sign-in"><h1>{escape(title)}</h1>{body}</main></body></html>'
    )
    linked = re.sub(r'\b(href|action)="/', rf'\1="{options.base_path}/', html)
    security = content_security(options.own_source, form_action)
    return HTMLResponse(linked, status, {"content-security-policy": security, "cache-control": "no-store"})


def dev_form(options: SignInOptions, back_to: str) -> HTMLResponse:
    body = (
        "<p>This service runs with <code>--dev</code>, for trials on one machine. You can sign in as anybody.</p>"
        '<form method="post" action="/sign-in/dev">'
        f'<input type="hidden" name="back" value="{escape(back_to)}">'
        '<label for="email">E-mail address</label>'
        '<input id="email" name="email" type="email" required autofocus autocomplete="email" value="ada@lab.example">'
        '<label for="role">Role</label><select id="role" name="role">'
        '<option value="member">Member</option><option value="lab-admin">Lab admin</option>'
        '<option value="platform-admin">Platform admin</option></select>'
        '<button type="submit">Sign in</button></form>'
    )
    return page(options, "Sign in", body)


def choice(options: SignInOptions, ways: Iterable[str], back_to: str) -> HTMLResponse:
    """Where the service has more than one way to sign in."""
    links = "".join(
        f'<p><a class="button" href="/sign-in?{escape(urlencode({"with": way, "back": back_to}))}">{WAYS[way]}</a></p>'
        for way in ways
    )
    return page(options, "Sign in", links)


def signed_out(options: SignInOptions) -> HTMLResponse:
    """Without this page a browser would go on to a provider that knows the person still, and be signed in again."""
    return page(options, "You are signed out", '<p><a class="button" href="/sign-in">Sign in</a></p>')


def sign_in_unavailable(options: SignInOptions) -> HTMLResponse:
    why = (
        "<p>This service has no identity provider. Ask its admin to configure one, or use a token: "
        "<code>carrel login --token</code>.</p>"
    )
    return page(options, "Sign-in is not configured", why, 503)


def failed(options: SignInOptions, why: str, status: int = 403) -> HTMLResponse:
    body = f'<p role="alert">{escape(why)}.</p><p><a href="/sign-in">Try again</a></p>'
    return page(options, "You are not signed in", body, status)


def allow_command_line(
    options: SignInOptions, email: str, csrf: str, asked: dict[str, str], callback: str
) -> HTMLResponse:
    fields = "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
        for name, value in {"csrf": csrf, **asked}.items()
    )
    scopes = escape(asked["scopes"].replace(" ", ", "))
    where = "on this computer" if callback else "on another computer"
    body = (
        f"<p>The program <strong>{escape(asked['label'])}</strong> {where} wants to act as "
        f"<strong>{escape(email)}</strong> ({scopes}). Allow it only if you have just run "
        f"<code>carrel login</code> yourself.</p>"
        f'<form method="post" action="/cli-login">{fields}<button type="submit">Allow</button></form>'
        '<p><a href="/">No, go to the home page</a></p>'
    )
    # Browsers apply form-action also to the redirect after a form.
    return page(options, "Allow the command line?", body, form_action=callback)


def code_to_type(options: SignInOptions, code: str, lifetime: timedelta) -> HTMLResponse:
    """It is worth nothing without the verifier of the command line that began the login."""
    minutes = int(lifetime.total_seconds() // 60)
    body = (
        f"<p>Type or paste this code where you ran <code>carrel login</code>, within {minutes} minutes:</p>"
        f"<p><code>{escape(code)}</code></p>"
        '<p role="note">Give it to nobody: whoever asked you for it by mail or chat would act in your name.</p>'
    )
    return page(options, "A code for the command line", body)
