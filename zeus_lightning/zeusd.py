"""Zeus's daemon `zeusd`, which sets power limits for processes without root.

This is the protocol of Zeus 0.16 (https://ml.energy/zeus/zeusd/): HTTP over a Unix socket or TCP,
with a JSON web token if the daemon was started with a signing key.
"""

from __future__ import annotations

import json
import os
import socket
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from zeus_lightning.errors import ZeusConfigError, ZeusPowerError

TIMEOUT_S = 2.0
"""Lightning kills the main process 5 s after another rank fails; limits are restored by then."""

_REFUSED = "set $ZEUSD_TOKEN, or start it with `--enable gpu-control,gpu-read`"


class Zeusd:
    """A client of the daemon. It opens a connection for each request, so restarts do not matter.

    Args:
        address: The path of a Unix socket, which contains a slash, or `host:port`.
        token: The daemon's token. Default: `$ZEUSD_TOKEN`.

    Raises:
        ZeusConfigError: `address` is neither of these. The methods raise a `ZeusPowerError` if the
            daemon cannot be reached or refuses a request; `fields["cause"]` is `no_permission`, or
            `zeusd` for everything else.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address = address
        token = token or os.environ.get("ZEUSD_TOKEN")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        host, colon, port = address.rpartition(":")
        if "/" not in address and not (host and colon and port.isdecimal()):
            raise ZeusConfigError(
                f"{address!r} is not a zeusd address; set $ZEUSD_SOCK_PATH to its Unix socket, "
                "such as /run/zeusd/zeusd.sock, or $ZEUSD_HOST_PORT to host:port"
            )

    def __str__(self) -> str:
        return f"zeusd at {self.address}"

    def api_groups(self) -> list[str]:
        """List what the daemon allows, such as `gpu-control` and `gpu-read`."""
        return [str(group) for group in self._discovered("enabled_api_groups")]

    def gpu_ids(self) -> list[int]:
        """List the daemon's GPUs, by its own NVML's indices."""
        return [int(gpu["id"]) for gpu in self._discovered("gpus")]

    def gpu_energy_mj(self, gpu_id: int) -> int:
        """Return a GPU's energy counter, in millijoules since its driver was loaded."""
        found = self._request("GET", "/gpu/get_cumulative_energy", gpu_ids=gpu_id)
        return int(found[str(gpu_id)]["energy_mj"])

    def set_power_limit(self, gpu_id: int, limit_mw: int) -> None:
        """Set a GPU's power limit in milliwatts, and wait until it is set."""
        self._request(
            "POST", "/gpu/set_power_limit", gpu_ids=gpu_id, power_limit_mw=limit_mw, block="true"
        )

    def _discovered(self, key: str) -> list[Any]:
        found = self._request("GET", "/discover")
        listed = found.get(key) if isinstance(found, dict) else None
        if not isinstance(listed, list):
            raise _error(f"{self} does not list its {key}; use zeusd from Zeus 0.16 or later")
        return listed

    def _request(self, method: str, path: str, **query: object) -> Any:
        connection = self._connection()
        try:
            connection.request(method, f"{path}?{urlencode(query)}", headers=self._headers)
            response = connection.getresponse()
            body = response.read().decode(errors="replace")
        except PermissionError as error:
            raise _error(
                f"{self} cannot be reached: {error}; start it with --socket-gid and this "
                "user's group",
                "no_permission",
            ) from error
        except (OSError, HTTPException) as error:
            raise _error(
                f"{self} cannot be reached: {error or type(error).__name__}; check that it runs "
                "(a container needs its socket mounted)"
            ) from error
        finally:
            connection.close()
        if response.status in (401, 403, 404):
            raise _error(
                f"{self} refused: {_reason(body)}; {_REFUSED}",
                "no_permission",
            )
        if response.status != 200:
            raise _error(
                f"{self} failed with status {response.status}: {_reason(body)}; see its log"
            )
        try:
            return json.loads(body) if body else None
        except ValueError as error:
            raise _error(
                f"{self} did not answer with JSON: {body[:60]!r}; check zeusd's address"
            ) from error

    def _connection(self) -> HTTPConnection:
        if "/" in self.address:
            return _UnixConnection(self.address)
        return HTTPConnection(self.address, timeout=TIMEOUT_S)


def find_zeusd(address: str | None = None) -> Zeusd | None:
    """Return the daemon at `address`, `$ZEUSD_SOCK_PATH` or `$ZEUSD_HOST_PORT`; None without."""
    if address is None and (path := os.environ.get("ZEUSD_SOCK_PATH")):
        address = str(Path(path).absolute())
    address = address or os.environ.get("ZEUSD_HOST_PORT")
    return Zeusd(address) if address else None


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _error(message: str, cause: str = "zeusd") -> ZeusPowerError:
    return ZeusPowerError(message, {"cause": cause})


def _reason(body: str) -> str:
    """Return the error of an answer: `error`, or `errors` by device, or plain text."""
    try:
        found = json.loads(body)
    except ValueError:
        return body[:500]
    if not isinstance(found, dict):
        return body[:500]
    errors = found.get("errors") or {}
    return str(found.get("error") or "; ".join(map(str, errors.values())) or body[:500])
