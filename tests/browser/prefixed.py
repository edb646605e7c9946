"""A small reverse proxy that serves another server below a path, as an operator's would."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PREFIX = "/tools/ropeway"
#: What belongs to one connection and is not passed on.
OWN = {"connection", "keep-alive", "transfer-encoding"}


@contextmanager
def below_a_path(url: str, *, held: threading.Event | None = None) -> Iterator[str]:
    """The address of the server `url` behind a proxy that takes PREFIX off; anything else is not found.

    A stream that has something to say while `held` is set stays open and never says anything again, as behind a
    proxy that waits for the end of an answer, or when the other end has gone without a word.
    """
    behind = urlsplit(url).netloc

    class Handler(BaseHTTPRequestHandler):
        def _pass(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            connection = http.client.HTTPConnection(behind, timeout=30)
            with suppress(OSError):  # the browser has gone away, or the server stops
                headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN}
                connection.request(self.command, self.path.removeprefix(PREFIX), body or None, headers)
                answer = connection.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in OWN:
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                is_stream = answer.getheader("content-type", "").startswith("text/event-stream")
                silent = False
                while piece := answer.read1(65_536):
                    silent = silent or (is_stream and held is not None and held.is_set())
                    if silent:
                        continue
                    self.wfile.write(piece)
                    self.wfile.flush()
            connection.close()

        do_GET = do_POST = _pass  # noqa: N815 - the names that http.server looks for

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    class Proxy(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A connection that ended early is no error."""

    proxy = Proxy(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}{PREFIX}"
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
