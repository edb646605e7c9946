"""Every error and every promised name is written down."""

from __future__ import annotations

from pathlib import Path

import ropeway
from ropeway.core import errors

ROOT = Path(__file__).resolve().parents[2]


def test_every_error_is_documented() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    tree = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RopewayError)
    ]
    families = {errors.RopewayError, errors.InputError, errors.ConflictError, errors.EngineError}
    for kind in tree:
        if kind not in families:
            assert f"`{kind.__name__}`" in page, kind.__name__
            assert f"`{kind.code}`" in page, kind.code
        assert kind.__name__ in (errors.__doc__ or "")
        assert kind.__name__ in ropeway.__all__


def test_the_promised_names_are_pinned() -> None:
    assert sorted(ropeway.__all__) == ropeway.__all__
    assert all(hasattr(ropeway, name) for name in ropeway.__all__)
    assert len(ropeway.__all__) == 72, (
        "a promised name came or went: say so in CHANGELOG.md and change this number"
    )
