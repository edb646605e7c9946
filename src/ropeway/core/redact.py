"""What must not be read by everybody: passwords in URLs, and values whose name says that they are secret."""

from __future__ import annotations

import re
from functools import lru_cache

#: What stands in place of a secret.
MASK = "***"

_TELLTALE = r"passw(?:or)?d|passphrase|token|secret|authorization|dsn|api_?key|credential|cookie"
_SECRET_NAME = re.compile(_TELLTALE, re.IGNORECASE)
_USER_PART = re.compile(r"(://[^:/@?#]*):.*@", re.DOTALL)
_QUERY_PART = re.compile(rf"([?&][^=&]*(?:{_TELLTALE})[^=&]*=)[^&#]*", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
# `token: x` in plain words is more often grammar than a secret ("unexpected token: x"), so it needs = or quotes.
_PAIR = re.compile(
    rf"""([\w.-]*(?:{_TELLTALE})[\w.-]*(?:\s*=\s*|["']\s*:\s*)
      | \b(?:password|authorization|secret|api[ _-]?key)\s*:\s*)
     (?:(?:bearer|basic)\s+)? (?:"[^"]*"|'[^']*'|[^\s,;&)\]}}]+)""",
    re.IGNORECASE | re.VERBOSE,
)

#: A key of the HTTP API (`core.keytext`). Its id stays: it is public, and tells which key to revoke.
_API_KEY = re.compile(r"(rw_[a-z0-9]{1,16}_[a-z2-7]{12})_[0-9A-Za-z]{20,}(?:_[0-9a-z]+)?")
#: What every such key has in it.
API_KEY_MARK = "rw_"


def hide_password(url: str) -> str:
    """The URL with its password, in the user part or in the query, replaced by ***."""
    # Greedy up to the last @: a password may hold any character, and hiding too much does no harm.
    return _QUERY_PART.sub(rf"\1{MASK}", _USER_PART.sub(rf"\1:{MASK}@", url))


@lru_cache(maxsize=4_096)
def is_secret_name(name: str) -> bool:
    """Whether a field of that name holds something that must not be shown, whatever it is."""
    return _SECRET_NAME.search(name) is not None


def redact(text: str) -> str:
    """Free text, such as an error's, without API keys, the passwords of URLs in it and `password=...`."""
    if API_KEY_MARK in text:
        text = _API_KEY.sub(rf"\1_{MASK}", text)
    if "://" in text:
        text = _URL.sub(lambda url: hide_password(url.group()), text)
    if "=" in text or ":" in text:
        text = _PAIR.sub(rf"\1{MASK}", text)
    return text
