"""The door of a federation on this machine: its processes know a secret, and nobody else gets in.

Flower lets whoever reaches a port of a SuperLink submit runs, which are code, and whoever reaches
that of a SuperNode take its tasks; every user of a machine reaches its loopback interface. What
Flower offers against it needs an account server that the open version does not have. So each of
the federation's commands is started by a script of the same name that first calls `close_door`:
what Flower's own clients send then carries a secret, and servers refuse what does not.
Certificates (`tls`) show that whoever is sent the secret is one of them.

No PyTorch here, and nothing of fedtail: every message starts a process that reads this file.
"""

from __future__ import annotations

import hmac
import secrets
import shutil
import stat
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

HEADER = "x-fedtail-door"
KEY = "door.key"
"""The file with the secret, in a folder that only its owner may look into."""
SERVERS = ("flower-superlink", "flower-supernode")
STARTED = ("flower-superexec", "flwr-serverapp", "flwr-clientapp", "flwr-simulation")
FEDERATION_COMMANDS = (*SERVERS, *STARTED, "flwr")
"""What a federation is made of."""
SCRIPT = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import runpy
runpy.run_path({door!r})["close_door"]({key!r})
runpy.run_path({command!r}, run_name="__main__")
"""
"""Of the shell and of Python: the path of a Python may be too long for a first line."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def new_door(home: Path, beside: Path) -> Path:
    """Make a secret and the commands that know it; return the folder of the commands.

    Parameters
    ----------
    home
        A folder that only its owner may look into.
    beside
        The folder with Flower's own commands.
    """
    key, folder = home / KEY, home / "bin"
    key.touch(mode=0o600)
    key.write_text(secrets.token_urlsafe(32))
    folder.mkdir()
    for name in FEDERATION_COMMANDS:
        own = beside / name
        real = str(own) if own.exists() else shutil.which(name)
        if real is None:  # simulation is an extra
            continue
        script = folder / name
        script.write_text(
            SCRIPT.format(python=sys.executable, door=__file__, key=str(key), command=real)
        )
        script.chmod(stat.S_IRWXU)
    return folder


def secret_of(home: Path) -> str:
    """Return the secret of a federation."""
    return (home / KEY).read_text()


def close_door(key: str) -> None:
    """Let Flower's clients in this process send the secret, and its server ask for it."""
    from flwr.supercore.protobuf import client

    secret = Path(key).read_text()
    plain = client.ProtobufClient._send

    def send(self: Any, context: Any, **options: Any) -> Any:
        context.request.headers[HEADER] = secret
        return plain(self, context, **options)

    # Flower offers no place to add a header, nor to look at one.
    client.ProtobufClient._send = send  # type: ignore[method-assign]
    if Path(sys.argv[0]).name in SERVERS:
        import uvicorn

        load = uvicorn.Config.load

        def guarded(self: uvicorn.Config) -> None:
            load(self)
            self.loaded_app = Door(self.loaded_app, secret)

        uvicorn.Config.load = guarded  # type: ignore[method-assign]


class Door:
    """A server that answers nobody without the secret.

    Parameters
    ----------
    app
        The server behind it.
    secret
        What a request has to carry.
    """

    def __init__(self, app: App, secret: str) -> None:
        self.app = app
        self.secret = secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        said = [value for name, value in scope.get("headers", ()) if name == HEADER.encode()]
        known = len(said) == 1 and hmac.compare_digest(said[0], self.secret)
        if known or scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            head = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 403, "headers": head})
            await send(
                {"type": "http.response.body", "body": b"closed: this is a private federation"}
            )
        else:
            await send({"type": "websocket.close", "code": 1008})
