"""A PostgreSQL URL: what it says, and that nothing it hides is told."""

from __future__ import annotations

import pytest

from ropeway.core.errors import ConfigurationError
from ropeway.engines.postgres.connection import Address, connect


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://keeper:S3CRET/x@host:5432/db",
        "postgresql://keeper:S3CRET?x@host:5432/db",
        "postgresql://keeper@host:S3CRET/db",
        "postgresql://keeper:S3CRET@[host/db",
        "postgresql://keeper:S3CRET@host:99999999/db",
    ],
)
async def test_a_password_that_is_not_escaped_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        await connect(Address.parse(url))
    assert "S3CRET" not in str(raised.value)
    assert "escaped" in str(raised.value)
