"""Read jobs for the command line: from the database, or from a service over HTTP."""

import json
import re
from http.client import HTTPException, HTTPMessage
from typing import IO, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import BaseModel, ValidationError

from zeus_service import optimizer
from zeus_service.api import savings_report
from zeus_service.api.messages import (
    Job,
    JobList,
    JobSavings,
    JobSummary,
    Savings,
    Trial,
    TrialList,
)
from zeus_service.errors import Unusable

Message = TypeVar("Message", bound=BaseModel)

_TIMEOUT_S = 30


class Database:
    """Reads the configured database, within the application's context."""

    def list_jobs(self, *, after: str = "") -> JobList:
        """Return jobs with an id greater than `after`, ordered by id."""
        return JobList(jobs=[JobSummary.of(job) for job in optimizer.list_jobs(after=after)])

    def get_job(self, job_id: str) -> Job:
        """Return a job with the policy's estimates of its batch sizes."""
        outcomes = optimizer.count_outcomes(job_id)
        return Job.with_estimates(optimizer.get_job(job_id), outcomes)

    def list_trials(self, job_id: str, *, after: int = 0, limit: int = 100) -> TrialList:
        """Return a job's trials with a number greater than `after`, ordered by number."""
        found = optimizer.list_trials(job_id, after=after, limit=limit)
        return TrialList(trials=[Trial.of(job_id, trial) for trial in found])

    def savings(self, job_id: str | None, *, weeks: int) -> JobSavings | Savings:
        """Return what a job has saved, or all jobs together."""
        if job_id is None:
            return savings_report.of_all_jobs(weeks=weeks)
        return savings_report.of_job(job_id, weeks=weeks)


class RemoteService:
    """Reads the same from a service.

    Args:
        url: The service, such as `http://127.0.0.1:8765`.
        token: A bearer token, if the service wants one.

    The methods raise `Unusable` if the service cannot be reached, or refuses.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        if "@" in url:  # what is before it may be secret
            raise Unusable(
                "the address of the service has a user or a password; use http://HOST:PORT, and "
                "set ZEUS_BSO_READ_TOKEN or ZEUS_BSO_TOKEN"
            )
        if not re.fullmatch(r"https?://[^/?#]+/?", url):
            raise Unusable(f"{url!r} is not a service URL; use http://HOST:PORT")
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._opener = build_opener(_NoRedirects)

    def list_jobs(self, *, after: str = "") -> JobList:
        """Return jobs with an id greater than `after`, ordered by id."""
        return self._get(JobList, "/jobs", after=after)

    def get_job(self, job_id: str) -> Job:
        """Return a job with the policy's estimates of its batch sizes."""
        return self._get(Job, _path(job_id))

    def list_trials(self, job_id: str, *, after: int = 0, limit: int = 100) -> TrialList:
        """Return a job's trials with a number greater than `after`, ordered by number."""
        return self._get(TrialList, f"{_path(job_id)}/trials", after=after, limit=limit)

    def savings(self, job_id: str | None, *, weeks: int) -> JobSavings | Savings:
        """Return what a job has saved, or all jobs together."""
        if job_id is None:
            return self._get(Savings, "/savings", weeks=weeks)
        return self._get(JobSavings, f"{_path(job_id)}/savings", weeks=weeks)

    def _get(self, kind: type[Message], path: str, **query: object) -> Message:
        try:
            return kind.model_validate_json(self._read(f"/api/v1{path}?{urlencode(query)}"))
        except HTTPError as error:
            raise self._refused(error) from error
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise Unusable(f"no answer from {self._url}: {reason}") from error
        except ValidationError as error:
            raise Unusable(f"{self._url} is not a zeus-service of this version") from error

    def _read(self, path: str) -> bytes:
        request = Request(f"{self._url}{path}", headers=self._headers)
        with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
            content: bytes = answer.read()
            return content

    def _refused(self, error: HTTPError) -> Unusable:
        try:
            detail = json.loads(error.read())["detail"]
        except (ValueError, KeyError, TypeError):
            return Unusable(f"{self._url} is not a zeus-service: it answered {error.code}")
        if error.code in (401, 403):
            detail += "; set ZEUS_BSO_READ_TOKEN or ZEUS_BSO_TOKEN to it"
        return Unusable(f"{self._url}: {detail}")


def _path(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


Reader = Database | RemoteService


class _NoRedirects(HTTPRedirectHandler):
    """A redirect is an error: it could take the token to another host."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Called by the opener."""
