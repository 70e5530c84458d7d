"""`BSOClient`: the service's interface, over HTTP; no other module uses HTTP."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from threading import Thread
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from zeus_lightning.errors import (
    ZeusConfigError,
    ZeusJobConflict,
    ZeusServiceError,
    ZeusServiceUnavailable,
)
from zeus_lightning.messages import (
    MAX_REASON,
    Decision,
    Hardware,
    JobSpec,
    Outcome,
    Report,
    TrialStart,
    TrialStatus,
)

if TYPE_CHECKING:  # importing requests takes 40 ms: only when first needed
    import requests

T = TypeVar("T")
Json = dict[str, Any]

_UNAVAILABLE = (502, 503, 504)
NO_BATCH_SIZE_LEFT = "no_batch_size_left"
"""The `code` in the fields of an error: every batch size of the job has failed."""


class BSOClient:
    """The service's interface, version 1.

    Every call may be sent twice without harm (a job is confirmed, a start has a key, a report a
    sequence number), so every call is retried: on connection errors and on 502, 503 and 504, after
    the server's `Retry-After`. A call fails within two seconds if the connection is refused, and
    after `timeout_s` if the server does not answer.

    Args:
        url: Where the service is, such as `http://127.0.0.1:8765`.
        token: Sent as a bearer token; default: `$ZEUS_BSO_TOKEN`, else none.
        timeout_s: Seconds for a call in all, with name resolution, retries and waits.
        retry: Whether a call that fails is sent again.

    Raises:
        ZeusConfigError: The URL or the token is invalid.
        ZeusServiceError: Every method: the service refused the request.
        ZeusServiceUnavailable: Every method: the service did not answer.
    """

    def __init__(
        self, url: str, token: str | None = None, timeout_s: float = 10.0, *, retry: bool = True
    ) -> None:
        self.url = _checked_url(url)
        self._token = _checked_token(token or os.environ.get("ZEUS_BSO_TOKEN"))
        self._timeout_s = timeout_s
        self._retry = retry
        # a proxy of the environment cannot reach this machine's loopback addresses
        self._proxies = dict.fromkeys(("http", "https", "all"), "") if _is_loopback(url) else None

    def without_retries(self, timeout_s: float) -> Self:
        """A client of the same service that sends each call once, and waits for `timeout_s`."""
        return type(self)(self.url, self._token, timeout_s, retry=False)

    def register_job(self, job: JobSpec) -> JobSpec:
        """Register a job, or confirm it; return it with its registered values.

        Raises:
            ZeusJobConflict: It is registered with other values.
            ZeusConfigError: It is new, and nothing says whether its metric should rise or fall.
        """
        try:
            data = self._request("POST", "/api/v1/jobs", job.registration())
        except ZeusServiceError as error:
            if list(error.fields.get("errors", {})) != ["higher_is_better"]:
                raise
            raise ZeusConfigError(
                f"the name {job.monitor!r} does not show whether the metric should rise or fall; "
                "pass mode='max' or mode='min', or correct the name"
            ) from None
        return self._parse(lambda data: JobSpec.from_json(data["spec"]), data)

    def start_trial(
        self,
        job_id: str,
        key: str,
        hardware: Hardware,
        multiple_of: int = 1,
        *,
        control: bool = False,
    ) -> TrialStart:
        """Start a trial; the same key gives the same one.

        Args:
            job_id: The job.
            key: 1 to 255 printable ASCII characters.
            hardware: What the trial uses.
            multiple_of: What its batch size is divided by, such as the number of devices.
            control: Whether it is a control trial.

        Raises:
            ZeusJobConflict: The job keeps other hardware or another number of devices, or none of
                its batch sizes can be divided.
            ZeusServiceError: With the code `NO_BATCH_SIZE_LEFT`; never for a control trial.
        """
        headers = {"Idempotency-Key": key}
        body: Json = {"hardware": hardware.to_json(), "multiple_of": multiple_of}
        if control:
            body["control"] = True
        data = self._request("POST", f"{_job(job_id)}/trials", body, headers)
        return self._parse(TrialStart.from_json, data)

    def report(self, trial: TrialStart, report: Report) -> Decision:
        """Report a validation; the service decides whether the trial continues."""
        data = self._request("POST", _trial(trial, "/reports"), report.to_json())
        return self._parse(Decision.from_json, data)

    def end_trial(self, trial: TrialStart, outcome: Outcome, reason: str) -> TrialStatus:
        """End a trial, with the first 1000 characters of the reason; return it as it ended."""
        body = {"outcome": outcome, "reason": reason[:MAX_REASON]}
        data = self._request("PATCH", _trial(trial), body)
        return self._parse(TrialStatus.from_json, data)

    def heartbeat(self, trial: TrialStart) -> None:
        """Extend a trial's lease."""
        self._request("POST", _trial(trial, "/heartbeat"), {})

    def trial_status(self, job_id: str, trial_number: int) -> TrialStatus | None:
        """A trial's status at the service; None if the job has no such trial."""
        path = f"{_job(job_id)}/trials?after={trial_number - 1}&limit=1"
        trials = self._request("GET", path).get("trials") or [{}]
        if trials[0].get("trial_number") != trial_number:
            return None
        return self._parse(TrialStatus.from_json, trials[0])

    def server_version(self) -> str:
        """The version of the service."""
        return str(self._request("GET", "/healthz").get("version", "unknown"))

    def answers(self) -> bool:
        """Whether the service answers now."""
        try:
            self.server_version()
        except ZeusServiceError:
            return False
        return True

    def savings(self, job_id: str) -> Json:
        """What a job has spent, and saved compared with its default batch size."""
        return self._request("GET", f"{_job(job_id)}/savings")

    def check_access(self) -> None:
        """Check that the token may write, by the heartbeat of a trial that no job has."""
        path = "/api/v1/jobs/zeus-lightning/trials/2147483647/heartbeat?generation=none"
        try:
            self._request("POST", path, {})
        except ZeusServiceError as error:
            if error.fields.get("code") != "not_found":
                raise

    def put_power_profile(self, job_id: str, profile: Json) -> None:
        """Store a power profile for the job's next runs with its batch size and GPU model."""
        path = f"{_job(job_id)}/power-profiles/{profile['batch_size']}"
        self._request("PUT", path, profile)

    def power_profiles(
        self, job_id: str, device_model: str, num_devices: int, parse: Callable[[Json], T]
    ) -> list[T]:
        """The job's power profiles of some GPUs, ordered by batch size, each read by `parse`."""
        query = urlencode({"device_model": device_model, "num_devices": num_devices})
        data = self._request("GET", f"{_job(job_id)}/power-profiles?{query}")
        return self._parse(lambda data: list(map(parse, data["profiles"])), data)

    def _request(
        self, method: str, path: str, body: Json | None = None, headers: Json | None = None
    ) -> Json:
        """Send a request, and return the JSON object that answers it."""
        import requests
        from urllib3.exceptions import LocationValueError

        session, total_s = self._session, self._timeout_s

        def send() -> requests.Response:
            return session.request(
                method,
                f"{self.url}{path}",
                json=body,
                headers=headers,
                timeout=(total_s / 5, total_s / 2),  # to connect and to read, of each attempt
                proxies=self._proxies,
                allow_redirects=False,
            )

        try:
            response = _within(total_s, send)
        except TimeoutError:
            self.__dict__.pop("_session", None)  # that thread still uses it
            raise ZeusServiceUnavailable(
                f"the batch size service at {self._place()} did not answer within {total_s:g} s"
            ) from None
        except (requests.exceptions.InvalidURL, LocationValueError):
            # the error itself may have a part of a proxy's password
            raise ZeusConfigError(
                f"{self.url!r} or its proxy in the environment is not a valid URL; check both"
            ) from None
        except OSError as error:  # of requests, and if $REQUESTS_CA_BUNDLE names no file
            raise ZeusServiceUnavailable(
                f"no service answers at {self._place()} ({_cause(error)})"
            ) from None
        try:
            data = response.json()
        except ValueError:
            data = None
        if isinstance(data, dict) and response.status_code < 300:
            return data
        raise self._error(response, data if isinstance(data, dict) else {})

    def _place(self) -> str:
        """The URL, with the proxy of the environment that requests to it go through."""
        from requests.utils import get_environ_proxies, select_proxy

        proxy = None if self._proxies else select_proxy(self.url, get_environ_proxies(self.url))
        return f"{self.url} via the proxy {without_user(proxy)}" if proxy else self.url

    @cached_property
    def _session(self) -> requests.Session:
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry

        retry = Retry(
            total=3,
            read=1,
            backoff_factor=0.2,  # waits of 0, 0.4 and 0.8 s
            status_forcelist=_UNAVAILABLE,
            allowed_methods=None,  # all of them: every call is idempotent
            retry_after_max=2,
            raise_on_status=False,
        )
        session = requests.Session()
        for prefix in ("http://", "https://"):
            session.mount(prefix, HTTPAdapter(max_retries=retry if self._retry else 0))
        if self._token:
            session.auth = self._authorize  # a header would lose against ~/.netrc
        return session

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def _error(self, response: requests.Response, problem: Json) -> ZeusServiceError:
        """The error for an answer; a refusal of the service is a problem document (RFC 9457)."""
        status = response.status_code
        detail = str(problem.get("detail") or problem.get("title") or "no detail")
        described = ("type", "title", "detail")
        fields = {k: v for k, v in problem.items() if k not in described} | {"status": status}
        if status in _UNAVAILABLE:
            return ZeusServiceUnavailable(
                f"the service at {self._place()} is not available (HTTP {status}"
                f"{f': {detail}' if problem else ''})",
                fields,
            )
        if "code" not in problem:
            location = response.headers.get("Location")
            return ZeusServiceError(
                f"{self._place()} answers, but is not a batch size service (HTTP {status}, "
                f"{response.headers.get('Content-Type', 'no content type')}"
                f"{f', redirecting to {location}' if location else ''}); check the URL",
                fields,
            )
        if problem["code"] == "job_conflict":
            return ZeusJobConflict(detail, fields)
        if status == 401:
            detail += "; set $ZEUS_BSO_TOKEN to a token of the service"
        return ZeusServiceError(f"{self.url} refused the request (HTTP {status}): {detail}", fields)

    def _parse(self, parser: Callable[[Json], T], data: Json) -> T:
        try:
            return parser(data)
        except (KeyError, TypeError, ZeusConfigError) as error:
            raise ZeusServiceError(
                f"{self.url} sent a response that this version of zeus-lightning cannot read: "
                f"{error}; install the version that matches the service"
            ) from None


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Call in another thread, and wait for it at most `seconds`.

    A socket's timeouts bound each of its operations, not their sum: a server that sends a byte now
    and then could delay a run for as long as it likes.

    Raises:
        TimeoutError: It took longer; it may still be running.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            future.set_exception(error)

    Thread(target=run, name="zeus-client", daemon=True).start()
    return future.result(timeout=seconds)


def _job(job_id: str) -> str:
    return f"/api/v1/jobs/{quote(job_id, safe='')}"


def _trial(trial: TrialStart, action: str = "") -> str:
    generation = urlencode({"generation": trial.generation})
    return f"{_job(trial.job_id)}/trials/{trial.trial_number}{action}?{generation}"


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ZeusConfigError(
            f"url is {without_user(url)!r}; it must look like http://HOST:PORT or https://HOST/PATH"
        )
    if "@" in url or parts.query or parts.fragment:
        raise ZeusConfigError(
            f"url for {parts.hostname} contains a user name, query or fragment; remove it (a token "
            "belongs in $ZEUS_BSO_TOKEN)"
        )
    return url.rstrip("/")


def without_user(url: str) -> str:
    """A URL to show, without what may be a password."""
    return re.sub(r"^(\w*:?//)?.*@", r"\1", url)


def connect(url: str | None) -> BSOClient:
    """The service at a URL, by default `$ZEUS_SERVER_URL`.

    Raises:
        ZeusConfigError: None is given, or the URL or the token is invalid.
    """
    url = url or os.environ.get("ZEUS_SERVER_URL")
    if not url:
        raise ZeusConfigError("no service given; pass url=... or set $ZEUS_SERVER_URL")
    return BSOClient(url)


def _checked_token(token: str | None) -> str | None:
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ZeusConfigError(
            "the token contains spaces, line breaks or non-ASCII characters; copy it again"
        )
    return token


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _cause(error: BaseException) -> str:
    """The innermost reason of a chain of wrapped errors, in a few words."""
    for part in (getattr(error, "reason", None), *error.args):
        if isinstance(part, BaseException):
            return _cause(part)
    without_codes = re.sub(r"\[[^]]*\] | \(_ssl\.c:\d+\)", "", str(error))
    text = without_codes.rpartition(": ")[2]
    return text or type(error).__name__
