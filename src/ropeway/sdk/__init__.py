"""The SDK: a Ropeway server from Python, without the engine behind it.

    from ropeway import Client

    with Client("http://127.0.0.1:8000") as client:      # the key from ROPEWAY_TOKEN
        job = client.enqueue("email.send", {"to": "a@example.com"})
        print(client.get_status(job.id))

What a server refuses is raised as the error of that code, from `ropeway.core.errors`.
"""

from ropeway.sdk.clients import AsyncClient, Client
from ropeway.sdk.parts import JobFields, value_of
from ropeway.sdk.streams import StreamEvent
from ropeway.wire.calls import Patience

__all__ = ["AsyncClient", "Client", "JobFields", "Patience", "StreamEvent", "value_of"]
