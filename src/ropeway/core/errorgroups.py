"""Which errors are the same one: their type, and their message without what differs each time.

`no user 4711 in '/srv/a.db'` and `no user 12 in '/srv/b.db'` are one error. Numbers, ids, times, quoted text,
paths and addresses become `<n>`, `<id>`, `<text>`, `<path>` ... The fingerprint is for finding the group again; it
changes only if these rules do.
"""

from __future__ import annotations

import hashlib
import re

from ropeway.core.job import Job
from ropeway.core.payload import JobError
from ropeway.core.redact import redact

#: What says which error it is stands at the beginning of a message.
MAX_LOOKED_AT = 1_000
#: Of that, what is kept to tell groups apart and to show.
MAX_MESSAGE = 300

#: In this order: what stands earlier may hold what stands later. Repetitions are bounded or of one kind, so that
#: no message takes long.
_RULES = (
    ("<url>", re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s'\"<>)\]]+", re.IGNORECASE)),
    # A quote inside a word is an apostrophe.
    ("<text>", re.compile(r"(?<!\w)(?:'[^'\n]{0,300}'|\"[^\"\n]{0,300}\"|`[^`\n]{0,300}`)(?!\w)")),
    ("<email>", re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}\.[\w.-]{1,63}")),
    ("<id>", re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)),
    (
        "<time>",
        re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?: ?Z| ?[+-]\d\d:?\d\d)?)?\b"),
    ),
    ("<path>", re.compile(r"(?<![\w<>/])(?:[A-Za-z]:\\|~?/|\.{1,2}/)[\w.@%+~-]+(?:[/\\][\w.@%+~-]*)*")),
    ("<hex>", re.compile(r"\b(?:0x[0-9a-f]+|(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,})\b", re.IGNORECASE)),
    ("<n>", re.compile(r"(?<![A-Za-z_\d])[+-]?\d+(?:[.,:_]\d+)*(?:e[+-]?\d+)?", re.IGNORECASE)),
)
# What is left of numbers stands inside words. `worker3` is a name, `worker20260131` has a counter in it.
_LONG_NUMBER = re.compile(r"\d{3,}")
_SPACE = re.compile(r"\s+")


def normalise(message: str) -> str:
    """A message as its group is called: what differs from one time to the next is replaced."""
    text = message[:MAX_LOOKED_AT]
    for sign, rule in _RULES:
        text = rule.sub(sign, text)
    text = _SPACE.sub(" ", _LONG_NUMBER.sub("<n>", text)).strip()
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def fingerprint(type: str, normalised: str) -> str:
    """16 hexadecimal digits that name a group."""
    return hashlib.sha256(f"{type}\0{normalised}".encode("utf-8", "replace")).hexdigest()[:16]


def is_fingerprint(text: str) -> bool:
    return _FINGERPRINT.match(text) is not None


_FINGERPRINT = re.compile(r"[0-9a-f]{16}\Z")


def group_of(job: Job) -> tuple[str, str, str]:
    """The fingerprint, error type and message of a dead job's group. One that left no error goes by its reason."""
    error = job.last_error or JobError(job.dead_reason or "dead", "")
    message = redact(normalise(error.message))
    return fingerprint(error.type, message), error.type, message
