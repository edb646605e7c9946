"""Checking a large batch item by item: as one value it could take a second, and much memory, at a stretch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ropeway.api.heavy import SLOW_BYTES
from ropeway.api.totals import elements_of, members_of
from ropeway.core.errors import BatchTooLarge, PayloadError
from ropeway.core.fields import MAX_BATCH
from ropeway.core.payload import MAX_DEPTH, check_payload

_SPACE = b" \t\r\n"

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Cut(NamedTuple):
    #: What the list is called in the body; "" when it is the whole body.
    name: str
    items: list[bytes]
    #: The body without its items.
    around: bytes


def read_batch(body: bytes, decode: Callable[[bytes], Any], item_bytes: int, max_depth: int) -> Any:
    """The struct of a batch, checked as a whole body is. Raises PayloadError, or what `decode` raises.

    What is refused for its shape or number is not looked at any further.
    """
    cut = _cut(body)
    if cut is None:
        struct = decode(body)
        check_payload(body, max_bytes=len(body), max_depth=max_depth)
        return struct
    if len(cut.items) > MAX_BATCH:
        raise BatchTooLarge(
            f"a batch has at most {MAX_BATCH:,} items, this one has {len(cut.items):,}", hint="split it"
        )
    try:
        struct = decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Some item can be named, or the body is no JSON.
        struct = None
    around = cut.around if len(cut.around) <= SLOW_BYTES else b"".join(cut.around.split())
    if len(around) > SLOW_BYTES:
        # It has one member, and a name is short.
        raise PayloadError("the same key twice in one object", code="duplicate_key", pointer=f"/{cut.name}")
    check_payload(cut.around, max_bytes=len(cut.around), max_depth=max_depth)
    depth = max_depth - (2 if cut.name else 1)
    for index, item in enumerate(cut.items):
        try:
            check_payload(item, max_bytes=item_bytes, max_depth=depth)
        except PayloadError as error:
            error.index = index
            if error.pointer is not None:
                error.pointer = f"{'/' + cut.name if cut.name else ''}/{index}{error.pointer}"
            raise
    return decode(body) if struct is None else struct


def _cut(body: bytes) -> _Cut | None:
    """None: there is no list where a batch has one."""
    try:
        return _cut_by(body, _decode_members, lambda raw: [bytes(one) for one in _decode_list(raw)])
    except msgspec.DecodeError:
        # Half a surrogate pair is a flaw of one item, which is named: only a look at brackets gets round it.
        if b"\\u" not in body:
            raise
        return _cut_by(body, lambda raw: {name.strip(b'"').decode(): one for name, one in members_of(raw).items()},
                       elements_of)  # fmt: skip
    except RecursionError:
        raise PayloadError(f"nested deeper than {MAX_DEPTH} levels", code="too_deep") from None


def _cut_by(
    body: bytes, members: Callable[[bytes], dict[str, Any]], elements: Callable[[bytes], list[bytes]]
) -> _Cut | None:
    if body.lstrip(_SPACE)[:1] == b"[":
        return _Cut("", elements(body), b"[]")
    listed = bytes(members(body).get("jobs", b""))
    if listed[:1] != b"[":
        return None
    return _Cut("jobs", elements(listed), body.replace(listed, b"[]", 1))
