"""Requests that a server has to bear (E19): all that the tests know to be refused, and some made to hurt."""

from __future__ import annotations

from collections.abc import Mapping

from tests.api.corpus import ALL_SCOPES, ROWS, Row


def rude(token: str) -> list[bytes]:
    """Whole requests as they go over the line. None of them may leave a job behind: nobody would ask for it."""
    return [*(_row(row, token) for row in refused_rows()), *heavy(token)]


def refused_rows() -> list[Row]:
    """The rows of the corpus that are refused whatever the store holds, to somebody who may do everything."""
    return [row for row in ROWS if row.status >= 400 and not row.scene and row.scopes == ALL_SCOPES]


def heavy(token: str) -> list[bytes]:
    """Too large, too deep, never ending, half sent."""
    huge = b'{"type":"chaos.ok","payload":"' + b"x" * (2 * 2**20) + b'"}'
    deep = b'{"type":"chaos.ok","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    numbers = b'{"type":"chaos.ok","payload":[' + b",".join([b"1e131071"] * 100_000) + b"]}"
    long_number = b'{"type":"chaos.ok","payload":' + b"9" * 500_000 + b"}"
    batch = b'{"jobs":[' + b",".join([b'{"type":"a b","payload":"' + b"y" * 800 + b'"}'] * 1_000) + b"]}"
    endless = request("POST", "/v1/jobs", token, headers={"Transfer-Encoding": "chunked"})
    endless += b"".join(b"10000\r\n" + b"z" * 65_536 + b"\r\n" for _ in range(40))
    return [
        request("POST", "/v1/jobs", token, huge),
        request("POST", "/v1/jobs", token, deep),
        request("POST", "/v1/jobs", token, numbers),
        request("POST", "/v1/jobs", token, long_number),
        request("POST", "/v1/jobs/batch", token, batch),
        endless,
        request("POST", "/v1/jobs", token, huge)[:900_000],
    ]


def request(
    method: str,
    path: str,
    token: str,
    body: bytes | None = None,
    headers: Mapping[str, str | None] | None = None,
) -> bytes:
    """One request. A header that is None is left out."""
    given: dict[str, str | None] = {
        "Host": "127.0.0.1",
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Content-Length": None if body is None else str(len(body)),
        **(headers or {}),
    }
    lines = [
        f"{method} {path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in given.items() if value is not None),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def _row(row: Row, token: str) -> bytes:
    return request(row.method, row.path, token, row.body, row.headers)
