"""The report of runs that still train, on this machine only, updated by itself."""

from __future__ import annotations

from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedtail.errors import FedtailError
from fedtail.report.content import make_content
from fedtail.report.document import embedded, make_page
from fedtail.study.runs import Plain, read_runs

HOST = "127.0.0.1"
"""Never another: the page has no password."""


def make_server(folders: Sequence[Path | str], port: int) -> ThreadingHTTPServer:
    """Return a server of the report of some folders, ready for `serve_forever`.

    Parameters
    ----------
    folders
        Run folders, or folders with run folders inside; they are read again at every request.
    port
        Where it listens; 0 for any that is free.
    """

    class Handler(_Handler):
        watched = tuple(folders)

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "give 0 to 65535"
        raise FedtailError(f"cannot serve on port {port}: {reason}") from None


def read_content(folders: Sequence[Path | str]) -> Plain:
    """Return what the folders hold now, or the sentence that says what is wrong with them."""
    try:
        return make_content(read_runs(folders))
    except FedtailError as error:
        return {**make_content([]), "error": str(error)}


class _Handler(BaseHTTPRequestHandler):
    watched: tuple[Path | str, ...] = ()
    server_version = "fedtail"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page or its data."""
        # Another site must not read the numbers by pointing a name of its own at this address.
        name = (self.headers.get("Host") or "").partition(":")[0]
        path = self.path.partition("?")[0]
        if name not in (HOST, "localhost"):
            self._send(403, "text/plain", "this page is for 127.0.0.1 only\n")
        elif path == "/":
            self._send(200, "text/html", make_page(read_content(self.watched), live=True))
        elif path == "/data.json":
            self._send(200, "application/json", embedded(read_content(self.watched)))
        else:
            self._send(404, "text/plain", "there is / and /data.json\n")

    def _send(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a page that asks every two seconds would fill the terminal."""
