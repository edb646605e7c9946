"""How a worker was asked to run."""

from __future__ import annotations

import pytest

from ropeway.core.errors import ConfigurationError
from ropeway.engines.protocol import Weighted
from ropeway.settings import Settings
from ropeway.worker.options import WorkerOptions, overlaid, parse_caps, parse_queues, worker_name


def test_plain_names_are_strict_order_and_one_weight_makes_all_weights() -> None:
    assert parse_queues("mail") == ("mail",)
    assert parse_queues("mail, default") == ("mail", "default")
    assert parse_queues("mail:5,default") == (Weighted("mail", 5), Weighted("default", 1))


@pytest.mark.parametrize(
    "text", ["", "mail,", "mail,mail", "mail:0", "mail:1001", "mail:", "mail:x", "mail:-1", "mail:٣", "a b"]
)
def test_what_is_no_list_of_queues(text: str) -> None:
    with pytest.raises(ConfigurationError, match="-q"):
        parse_queues(text)


def test_caps() -> None:
    assert parse_caps(["mail=5", "default=1"], ["mail", "default"]) == {"mail": 5, "default": 1}
    for wrong in ("mail", "mail=", "mail=0", "mail=x", "mail=10001", "other=1", "=1"):
        with pytest.raises(ConfigurationError, match="--max"):
            parse_caps([wrong], ["mail"])


def test_flags_go_over_the_apps_settings() -> None:
    app = Settings(url="sqlite:///app.db", concurrency=3, lease_seconds=40)
    settings = overlaid(app, {"concurrency": 9, "url": None})
    assert (settings.url, settings.concurrency, settings.lease_seconds) == ("sqlite:///app.db", 9, 40)
    assert overlaid(app, {"url": None}) is app
    options = WorkerOptions(queues=(Weighted("mail", 2), "default")).with_settings(settings)
    assert (options.concurrency, options.lease_seconds) == (9, 40)
    assert options.queue_names() == ("mail", "default")


def test_names_differ_by_index_and_are_names() -> None:
    assert worker_name(1) != worker_name(2)
    assert not set(worker_name(1)) & set(" /:,")
