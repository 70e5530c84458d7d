"""`BSOClient`: how a training run talks to the service. The only module that speaks HTTP."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from functools import cached_property
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

from zeus_lightning.errors import (
    ZeusConfigError,
    ZeusJobConflict,
    ZeusNoBatchSizeLeft,
    ZeusServiceError,
    ZeusServiceUnavailable,
)
from zeus_lightning.messages import Decision, JobSpec, Outcome, Report, TrialStart, TrialStatus

if TYPE_CHECKING:  # importing requests takes 40 ms: only when first needed
    import requests

    from zeus_lightning.power.profile import PowerProfile

M = TypeVar("M", TrialStart, TrialStatus, Decision)
T = TypeVar("T")

_UNAVAILABLE = (502, 503, 504)
_NO_PROXY = {"http": None, "https": None, "all": None}


class BSOClient:
    """The service's interface, version 1.

    Every call may be sent twice without harm (a job is confirmed, a start has a key, a report a
    sequence number), so every call is retried: on connection errors and on 502, 503 and 504, with
    the server's `Retry-After`. Nobody listening is told within two seconds, a server that does not
    answer after `timeout_s`.

    Args:
        url: Where the service is, such as `http://127.0.0.1:8765`.
        token: Sent as a bearer token; default: `$ZEUS_BSO_TOKEN`, else none.
        timeout_s: What a call may take in all: names looked up, retries and waits included.

    Raises:
        ZeusConfigError: The URL or the token cannot be used.
    """

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 10.0) -> None:
        self.url = _checked_url(url)
        self._token = _checked_token(token or os.environ.get("ZEUS_BSO_TOKEN"))
        self._timeout_s = timeout_s
        # a proxy from the environment cannot reach this machine's loopback addresses
        self._proxies = _NO_PROXY if _is_loopback(self.url) else None

    def __repr__(self) -> str:
        return f"BSOClient({self.url!r})"

    def register_job(self, job: JobSpec) -> dict[str, Any]:
        """Register a job, or confirm that it is known as it is.

        Raises:
            ZeusJobConflict: It is known with another configuration.
            ZeusServiceError: As for every call; `ZeusServiceUnavailable` when nobody answers.
        """
        return self._call("POST", "/jobs", job.to_json())

    def start_trial(self, job_id: str, key: str, timeout_s: float | None = None) -> TrialStart:
        """Start a trial; the same key gives the same trial again.

        Args:
            job_id: The job.
            key: New for each trial, 1 to 255 printable ASCII characters.
            timeout_s: Try once, and for no longer than this; None: as every call.

        Raises:
            ZeusNoBatchSizeLeft: Every batch size of the job has failed.
        """
        path = f"{_job(job_id)}/trials"
        headers = {"Idempotency-Key": key}
        return self._parse(TrialStart, self._call("POST", path, {}, headers, once_s=timeout_s))

    def report(
        self, job_id: str, trial_number: int, report: Report, timeout_s: float | None = None
    ) -> Decision:
        """Report a validation's figures and hear how to go on.

        Args:
            job_id: The job.
            trial_number: The trial.
            report: The figures.
            timeout_s: Try once, and for no longer than this; None: as every call.
        """
        path = f"{_trial(job_id, trial_number)}/reports"
        return self._parse(Decision, self._call("POST", path, report.to_json(), once_s=timeout_s))

    def end_trial(
        self,
        job_id: str,
        trial_number: int,
        outcome: Outcome,
        reason: str,
        timeout_s: float | None = None,
    ) -> None:
        """End a trial from this side.

        Args:
            job_id: The job.
            trial_number: The trial.
            outcome: One of those a client may give.
            reason: For a person; cut at 1000 characters.
            timeout_s: Try once, and for no longer than this; None: as every call.
        """
        body = {"outcome": outcome, "reason": reason[:1000]}
        self._call("PATCH", _trial(job_id, trial_number), body, once_s=timeout_s)

    def heartbeat(self, job_id: str, trial_number: int, timeout_s: float | None = None) -> None:
        """Extend a trial's lease.

        Args:
            job_id: The job.
            trial_number: The trial.
            timeout_s: Try once, and for no longer than this; None: as every call.
        """
        path = f"{_trial(job_id, trial_number)}/heartbeat"
        self._call("POST", path, {}, once_s=timeout_s)

    def trial_status(self, job_id: str, trial_number: int) -> TrialStatus | None:
        """What the service knows of a trial; None when it knows no such trial of the job."""
        path = f"{_job(job_id)}/trials?after={trial_number - 1}&limit=1"
        found = self._call("GET", path).get("trials") or [{}]
        if found[0].get("trial_number") != trial_number:
            return None
        return self._parse(TrialStatus, found[0])

    def server_version(self) -> str:
        """The version of the service that answers."""
        return str(self._call("GET", "/healthz", None, root="").get("version", "unknown"))

    def put_power_profile(self, job_id: str, profile: PowerProfile) -> None:
        """Keep a power profile for the job's next runs with this batch size and GPU model."""
        path = f"{_job(job_id)}/power-profiles/{profile.batch_size}"
        self._call("PUT", path, profile.to_json())

    def power_profiles(self, job_id: str, device_model: str) -> list[PowerProfile]:
        """The job's power profiles of a GPU model, ordered by batch size."""
        query = urlencode({"device_model": device_model})
        from zeus_lightning.power.profile import PowerProfile

        answer = self._call("GET", f"{_job(job_id)}/power-profiles?{query}", None)
        try:
            return [PowerProfile.from_json(profile) for profile in answer["profiles"]]
        except (KeyError, TypeError, ZeusConfigError) as error:
            raise self._not_understood(error) from None

    @cached_property
    def _session(self) -> requests.Session:
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
        return self._new_session(retry)

    def _new_session(self, retry: Any) -> requests.Session:
        import requests
        from requests.adapters import HTTPAdapter

        session = requests.Session()
        for prefix in ("http://", "https://"):
            session.mount(prefix, HTTPAdapter(max_retries=retry))
        if self._token:
            session.auth = self._authorize  # as a header it would lose against ~/.netrc
        return session

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        once_s: float | None = None,
        root: str = "/api/v1",
    ) -> dict[str, Any]:
        """Send one request, and return the JSON object it is answered with."""
        import requests
        from urllib3.exceptions import LocationValueError

        session = self._session if once_s is None else self._new_session(0)
        total_s = self._timeout_s if once_s is None else once_s

        def send() -> requests.Response:
            return session.request(
                method,
                f"{self.url}{root}{path}",
                json=body,
                headers=headers,
                timeout=(total_s / 5, total_s / 2),  # of each attempt
                proxies=self._proxies,  # type: ignore[arg-type]
                allow_redirects=False,
            )

        try:
            response = _within(total_s, send)
        except TimeoutError as error:
            self.__dict__.pop("_session", None)  # it is still in use there
            raise ZeusServiceUnavailable(f"{self.url} did not answer: {error}") from None
        except (requests.exceptions.InvalidURL, LocationValueError) as error:
            raise ZeusConfigError(f"url is {self.url!r}: {error}") from None
        except requests.RequestException as error:
            raise ZeusServiceUnavailable(
                f"no batch size service answers at {self.url} ({_cause(error)})"
            ) from None
        return self._answer(response)

    def _answer(self, response: requests.Response) -> dict[str, Any]:
        try:
            parsed = response.json()
        except ValueError:
            parsed = None
        data: dict[str, Any] | None = parsed if isinstance(parsed, dict) else None
        if response.ok and not response.is_redirect and data is not None:
            return data
        if response.status_code in _UNAVAILABLE:
            raise ZeusServiceUnavailable(
                f"the batch size service at {self.url} is not available "
                f"(HTTP {response.status_code}{_detail(data)})",
                {"status": response.status_code},
            )
        if data is None or "code" not in data:
            location = response.headers.get("Location")
            raise ZeusServiceError(
                f"{self.url} answers, but not as a zeus service does (HTTP {response.status_code}, "
                f"{response.headers.get('Content-Type', 'no content type')}"
                f"{f', redirecting to {location}' if location else ''}); check the URL",
                {"status": response.status_code},
            )
        raise self._refusal(response.status_code, data)

    def _refusal(self, status: int, problem: dict[str, Any]) -> ZeusServiceError:
        """The error that a problem document (RFC 9457) stands for."""
        common = ("type", "title", "status", "detail")
        fields = {"status": status, **{k: v for k, v in problem.items() if k not in common}}
        detail = str(problem.get("detail") or problem.get("title") or "no detail")
        match problem["code"]:
            case "job_conflict":
                return ZeusJobConflict(detail, fields)
            case "no_batch_size_left":
                return ZeusNoBatchSizeLeft(detail, fields)
        if status in (401, 403):
            detail += "; give the service's token as token=... or $ZEUS_BSO_TOKEN"
        if problem.get("errors"):
            detail += f" {problem['errors']}"
        return ZeusServiceError(
            f"the batch size service at {self.url} refused (HTTP {status}): {detail}", fields
        )

    def _parse(self, message: type[M], data: dict[str, Any]) -> M:
        try:
            return message.from_json(data)
        except TypeError as error:
            raise self._not_understood(error) from None

    def _not_understood(self, error: Exception) -> ZeusServiceError:
        return ZeusServiceError(
            f"{self.url} gave an answer this version does not understand: {error}; "
            "are the service and this package of the same version?"
        )


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Call in another thread, and wait for it no longer than that.

    The timeouts of a socket are for each of its operations: a server that sends a byte now and then
    would hold a run up for as long as it likes.

    Raises:
        TimeoutError: It took longer; it may still be going on.
    """
    done: Queue[tuple[T | None, BaseException | None]] = Queue()

    def run() -> None:
        try:
            done.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised below
            done.put((None, error))

    Thread(target=run, name="zeus-client", daemon=True).start()
    try:
        result, error = done.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return cast("T", result)


def _job(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _trial(job_id: str, trial_number: int) -> str:
    return f"{_job(job_id)}/trials/{trial_number}"


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ZeusConfigError(
            f"url is {url!r}; it must look like http://HOST:PORT or https://HOST/PATH"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise ZeusConfigError(
            f"url for {parts.hostname} has a user, a query or a fragment, which the service does "
            "not know; give a token as token=... or $ZEUS_BSO_TOKEN"
        )
    return url.rstrip("/")


def _checked_token(token: str | None) -> str | None:
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ZeusConfigError(
            "the token holds blanks, line breaks or non-ASCII characters; was it copied whole?"
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
    inner: Any = error
    while True:
        parts = (getattr(inner, "reason", None), *inner.args)
        wrapped = [part for part in parts if isinstance(part, BaseException)]
        if not wrapped:
            break
        inner = wrapped[0]
    return str(inner).rpartition(": ")[2] or type(inner).__name__


def _detail(problem: dict[str, Any] | None) -> str:
    return f": {problem['detail']}" if problem and problem.get("detail") else ""
