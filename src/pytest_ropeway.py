"""The pytest fixtures `ropeway` and `ropeway_app`.

pytest loads this module in every project that has Ropeway installed, so it stands outside the package and imports
nothing of it until a test asks for a fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropeway import Ropeway
    from ropeway.testing import Kit


@pytest.fixture
def ropeway_app() -> Ropeway | None:
    """The app that the `ropeway` fixture takes hold of. Override it in your conftest.py to return yours."""
    return None


@pytest.fixture
def ropeway(ropeway_app: Ropeway | None) -> Iterator[Kit]:
    """Your app on a store of the test's own, in memory: drain it, look at it, move its clock."""
    from ropeway.testing import Kit

    with Kit(ropeway_app) as kit:
        yield kit
