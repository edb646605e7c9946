"""An API key as text: `rw_<environment>_<id>_<secret>_<check>`.

The prefix lets scanners find a key that leaked; the id is public and names the key in lists and logs; the secret
is 256 bits that only the holder has; the check is a CRC-32, so that a mistyped or cut key is refused without a
look into the store. The environment is a label for people (`live`, `test`); it decides nothing.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import Final, NamedTuple

from ropeway.core.errors import FieldError

ID_LENGTH: Final = 12
SECRET_BYTES: Final = 32
_SECRET_LENGTH = 43
_CHECK_LENGTH = 7

_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_BASE36 = "0123456789abcdefghijklmnopqrstuvwxyz"
_BASE62 = _BASE36 + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_ENVIRONMENT = re.compile(r"[a-z0-9]{1,16}\Z")
_ID = re.compile(rf"[a-z2-7]{{{ID_LENGTH}}}\Z")
_TOKEN = re.compile(
    rf"(rw_[a-z0-9]{{1,16}}_([a-z2-7]{{{ID_LENGTH}}})_([0-9A-Za-z]{{{_SECRET_LENGTH}}}))"
    rf"_([0-9a-z]{{{_CHECK_LENGTH}}})\Z"
)


class KeyText(NamedTuple):
    """The two parts of a key's text that count."""

    id: str
    secret: str


def check_environment(word: str) -> str:
    """The label in a key's text."""
    if not isinstance(word, str) or not _ENVIRONMENT.match(word):
        raise FieldError(
            "environment must be 1 to 16 of a-z 0-9",
            pointer="/environment",
            hint="it labels the keys: `live`, `test`",
        )
    return word


def is_key_id(text: str) -> bool:
    """Whether this may be the id of a key; the id is not secret."""
    return _ID.match(text) is not None


def make_id(random: bytes) -> str:
    """A key's public id from at least 8 random bytes."""
    return _in_base(int.from_bytes(random[:8]), _BASE32, ID_LENGTH)


def make_secret(random: bytes) -> str:
    """A key's secret from 32 random bytes."""
    return _in_base(int.from_bytes(random[:SECRET_BYTES]), _BASE62, _SECRET_LENGTH)


def key_text(environment: str, id: str, secret: str) -> str:
    """What the holder of a key sends."""
    text = f"rw_{check_environment(environment)}_{id}_{secret}"
    return f"{text}_{_check(text)}"


def parse_key(text: str) -> KeyText | None:
    """The parts of a key, or None when the text cannot be one: wrong form, or mistyped."""
    found = _TOKEN.match(text)
    if found is None or _check(found[1]) != found[4]:
        return None
    return KeyText(found[2], found[3])


def secret_digest(secret: str) -> bytes:
    """What is stored of a secret. A slow hash adds nothing to 256 random bits."""
    return hashlib.sha256(secret.encode()).digest()


def _check(text: str) -> str:
    return _in_base(zlib.crc32(text.encode()), _BASE36, _CHECK_LENGTH)


def _in_base(number: int, digits: str, length: int) -> str:
    """A number in so many digits, the highest first; what does not fit is cut off at the top."""
    made = []
    for _ in range(length):
        number, digit = divmod(number, len(digits))
        made.append(digits[digit])
    return "".join(reversed(made))
