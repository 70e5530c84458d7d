"""Which addresses the service may listen on; the functions raise `Unusable` for another one."""

import ipaddress
import socket

from zeus_service.config import Config
from zeus_service.errors import Unusable


def check_bind(bind: str, config: Config) -> None:
    """Check that the service can and may listen on `HOST:PORT`: gunicorn retries for 5 seconds."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise Unusable(f"{bind!r} is not HOST:PORT, such as 127.0.0.1:8765")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            raise Unusable(
                f"cannot listen on {bind}: {error.strerror}; choose another with --bind"
            ) from error
        check_access(config, [probe])


def check_access(config: Config, listeners: list[socket.socket]) -> None:
    """Check that the service is not open to other machines without a token."""
    if config.has_tokens or config.insecure:
        return
    for listener in listeners:
        if listener.family == socket.AF_UNIX:
            continue
        host = listener.getsockname()[0]
        if not ipaddress.ip_address(host).is_loopback:
            raise Unusable(
                f"anyone who reaches {host} could write and delete jobs: set ZEUS_BSO_TOKEN to a "
                "secret that clients must know, or listen on 127.0.0.1, or set ZEUS_BSO_INSECURE=1 "
                "if the network lets in nobody else"
            )
