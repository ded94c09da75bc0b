"""Timestamps, as Kubernetes writes them in metadata: UTC, whole seconds."""

from datetime import UTC, datetime


def timestamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(since: object, now: datetime) -> str:
    """How long ago, as kubectl prints it: `12s`, `4m3s`, `5h2m`, `3d`."""
    if not isinstance(since, str):
        return "<unknown>"
    try:
        seconds = int((now - datetime.fromisoformat(since)).total_seconds())
    except (ValueError, TypeError):
        return "<invalid>"
    return short_duration(max(seconds, 0))


def short_duration(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    return f"{days // 365}y{days % 365}d" if days % 365 and days < 365 * 8 else f"{days // 365}y"
