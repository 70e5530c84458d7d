"""Zeus's daemon for tests: its protocol over a Unix socket or TCP, on the fake driver.

It answers as zeusd of Zeus 0.16 does (https://ml.energy/zeus/zeusd/), for the requests that this
project makes; `test_zeusd.py` lets Zeus's own client speak with it. As a program it is the daemon,
a process of its own that may set limits where the test may not.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qsl, urlsplit

import pynvml
from running import Running

GROUPS = ("gpu-control", "gpu-read")


class HasEnv(Protocol):
    """Has an environment for child processes."""

    @property
    def env(self) -> dict[str, str]: ...


class FakeZeusd(Running):
    """The daemon as a process.

    Args:
        driver: What has the environment in which it finds the GPUs, such as a `FakeDriver`; the
            daemon may set their limits, whoever else may not.
        address: Path of a socket, or `127.0.0.1:port`.
        groups: What it allows.
        key: Signing key of tokens; without it the daemon asks for none.
    """

    def __init__(
        self,
        driver: HasEnv,
        address: str,
        *,
        groups: tuple[str, ...] = GROUPS,
        key: str | None = None,
    ) -> None:
        self.address = address
        self._key = key
        options = {"address": address, "groups": groups, "key": key}
        self._command = [sys.executable, "-m", "fake_zeusd", json.dumps(options)]
        self._env = {
            **driver.env,
            "FAKE_NVML_ROOT": "1",
            "PYTHONPATH": str(Path(__file__).parent),
        }
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, env=self._env, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listens\n"

    def end(self) -> None:
        """Kill it; its socket's file stays, as a killed daemon's does."""
        if self._process is not None:
            assert self._process.stdout is not None
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def token(self, *scopes: str, expires_s: float | None = None) -> str:
        """Issue a token, as `zeusd token issue` does."""
        claims: dict[str, Any] = {"sub": "tester", "scopes": scopes}
        if expires_s is not None:
            claims["exp"] = int(expires_s)
        assert self._key is not None
        signed = f"{_encode({'typ': 'JWT', 'alg': 'HS256'})}.{_encode(claims)}"
        return f"{signed}.{_signature(signed, self._key)}"


def _encode(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _decode(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def _signature(signed: str, key: str) -> str:
    digest = hmac.digest(key.encode(), signed.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class _Refused(Exception):
    def __init__(self, status: int, body: object) -> None:
        self.status, self.body = status, body


class _Handler(BaseHTTPRequestHandler):
    options: ClassVar[dict[str, Any]]

    def do_GET(self) -> None:
        self._answer(
            {
                "/discover": self._discover,
                "/auth/whoami": self._whoami,
                "/gpu/get_cumulative_energy": self._gpu_energy,
                "/gpu/get_power_limit": self._get_power_limit,
            }
        )

    def do_POST(self) -> None:
        self._answer({"/gpu/set_power_limit": self._set_power_limit})

    def _answer(self, handlers: dict[str, Callable[[], object]]) -> None:
        url = urlsplit(self.path)
        self._query = dict(parse_qsl(url.query))
        try:
            self._authorize(url.path)
            if url.path not in handlers:
                raise _Refused(404, "")
            status, body = 200, handlers[url.path]()
        except _Refused as refused:
            status, body = refused.status, refused.body
        content = body if isinstance(body, str) else json.dumps(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def _authorize(self, path: str) -> None:
        device, _, name = path.removeprefix("/").partition("/")
        group = None
        if device == "gpu":
            group = f"gpu-{'control' if name.startswith(('set_', 'reset_')) else 'read'}"
        if group is not None and group not in self.options["groups"]:
            raise _Refused(404, {"error": f"API group '{group}' is not enabled on this server."})
        if (key := self.options["key"]) is None:
            if device == "auth":
                raise _Refused(404, {"error": "Authentication is not enabled on this server."})
            return
        if device in ("discover", "time"):
            return
        header = self.headers.get("Authorization", "")
        if not header.startswith("Bearer "):
            raise _Refused(
                401,
                {
                    "error": "Authentication required. Provide an Authorization: "
                    "Bearer <token> header."
                },
            )
        signed, _, signature = header.removeprefix("Bearer ").rpartition(".")
        if not hmac.compare_digest(_signature(signed, key), signature):
            raise _Refused(401, {"error": "Invalid token: InvalidSignature"})
        self._claims = _decode(signed.partition(".")[2])
        if self._claims.get("exp", float("inf")) < time.time() - 60:
            raise _Refused(401, {"error": "Token has expired."})
        scopes = self._claims["scopes"]
        if group is not None and group not in scopes:
            listed = ", ".join(f"'{scope}'" for scope in scopes)
            raise _Refused(
                403,
                {
                    "error": f"Token for user '{self._claims['sub']}' lacks required scope "
                    f"'{group}'. Token scopes: [{listed}]"
                },
            )

    def _whoami(self) -> object:
        return self._claims

    def _discover(self) -> object:
        count = 0
        if any(group.startswith("gpu") for group in self.options["groups"]):
            count = pynvml.nvmlDeviceGetCount()
        gpus = [
            {"id": index, "name": pynvml.nvmlDeviceGetName(_gpu(index))} for index in range(count)
        ]
        return {
            "gpus": gpus,
            "cpus": [],
            "enabled_api_groups": self.options["groups"],
            "auth_required": self.options["key"] is not None,
        }

    def _gpu_energy(self) -> object:
        self._check_query()
        return self._of_each(
            self._ids(pynvml.nvmlDeviceGetCount()),
            lambda index: {"energy_mj": pynvml.nvmlDeviceGetTotalEnergyConsumption(_gpu(index))},
        )

    def _get_power_limit(self) -> object:
        self._check_query()
        return self._of_each(
            self._ids(pynvml.nvmlDeviceGetCount()),
            lambda index: {"power_limit_mw": pynvml.nvmlDeviceGetPowerManagementLimit(_gpu(index))},
        )

    def _set_power_limit(self) -> object:
        self._check_query("gpu_ids", "power_limit_mw", "block")
        count = pynvml.nvmlDeviceGetCount()
        ids = self._ids(sys.maxsize)
        for index in ids:
            if index >= count:
                raise _Refused(400, f"GPU index {index} does not exist.")
        limit_mw = int(self._query["power_limit_mw"])
        self._of_each(
            ids, lambda index: pynvml.nvmlDeviceSetPowerManagementLimit(_gpu(index), limit_mw)
        )
        return ""

    def _check_query(self, *needed: str) -> None:
        """Answer as a query with missing or unknown fields is answered."""
        for name in needed:
            if name not in self._query:
                raise _Refused(400, f"Query deserialize error: missing field `{name}`")
        for name in self._query:
            if name not in (*needed, "gpu_ids"):
                raise _Refused(400, f"Query deserialize error: unknown field `{name}`")

    def _ids(self, count: int) -> list[int]:
        listed = self._query.get("gpu_ids")
        if listed is None:
            return list(range(count))
        try:
            ids = sorted({int(part) for part in listed.split(",")})
        except ValueError:
            raise _Refused(400, {"error": f"Invalid GPU index: {listed}"}) from None
        for index in ids:
            if index >= count:
                raise _Refused(400, {"error": f"GPU {index} not found"})
        return ids

    def _of_each(self, ids: list[int], of_one: Callable[[int], object]) -> object:
        results, errors, status = {}, {}, 0
        for index in ids:
            try:
                results[str(index)] = of_one(index)
            except pynvml.NVMLError as error:
                errors[str(index)] = f"NVML error: {error}"
                refused = {
                    pynvml.NVML_ERROR_NO_PERMISSION: 403,
                    pynvml.NVML_ERROR_INVALID_ARGUMENT: 400,
                    pynvml.NVML_ERROR_NOT_SUPPORTED: 400,
                }
                status = max(status, refused.get(error.value, 500))
        if errors:
            raise _Refused(status, {"errors": errors})
        return results

    def log_message(self, *_: object) -> None:
        pass


def _gpu(index: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: str) -> None:
        if "/" in address:
            Path(address).unlink(missing_ok=True)
            self.address_family = socket.AF_UNIX
            super().__init__(address, _Handler, bind_and_activate=False)  # type: ignore[arg-type]
            self.socket.bind(address)
        else:
            host, _, port = address.partition(":")
            super().__init__((host, int(port)), _Handler, bind_and_activate=False)
            self.allow_reuse_address = True
            self.server_bind()
        self.server_activate()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        return connection, address or ("local", 0)


if __name__ == "__main__":
    _Handler.options = json.loads(sys.argv[1])
    pynvml.nvmlInit()
    server = _Server(_Handler.options["address"])
    print("listens", flush=True)
    server.serve_forever()
