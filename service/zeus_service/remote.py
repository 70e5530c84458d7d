"""Read the jobs of a service on another machine, over its HTTP interface."""

import json
import re
from http.client import HTTPException, HTTPMessage
from typing import IO, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import BaseModel, ValidationError

from zeus_service.errors import UnusableService
from zeus_service.messages import Job, JobList, TrialList

Message = TypeVar("Message", bound=BaseModel)

_TIMEOUT_S = 30
_NEEDS_TOKEN = "; set ZEUS_BSO_READ_TOKEN or ZEUS_BSO_TOKEN to one of its tokens"


class RemoteService:
    """The reading use cases of `optimizer`, asked over HTTP.

    Args:
        url: The service, such as `http://127.0.0.1:8765`.
        token: A bearer token that may read, if the service asks for one.

    The methods raise `UnusableService` if the service cannot be reached, or refuses.
    """

    def __init__(self, url: str, token: str | None) -> None:
        if not re.fullmatch(r"https?://[^/@?#]+/?", url):
            raise UnusableService(f"{url!r} is no address of a service; use http://HOST:PORT")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._opener = build_opener(_NoRedirects)

    def list_jobs(self, *, after: str = "", limit: int = 100) -> JobList:
        """Return jobs with an id greater than `after`, ordered by id."""
        return self._get(JobList, "", after=after, limit=limit)

    def get_job(self, job_id: str) -> Job:
        """Return a job with the policy's beliefs about its batch sizes."""
        return self._get(Job, f"/{quote(job_id, safe='')}")

    def list_trials(self, job_id: str, *, after: int = 0, limit: int = 100) -> TrialList:
        """Return a job's trials with a number greater than `after`, ordered by number."""
        path = f"/{quote(job_id, safe='')}/trials"
        return self._get(TrialList, path, after=after, limit=limit)

    def _get(self, kind: type[Message], path: str, **query: object) -> Message:
        address = f"{self._url}/api/v1/jobs{path}?{urlencode(query)}"
        request = Request(address, headers=self._headers)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return kind.model_validate_json(answer.read())
        except HTTPError as error:
            raise self._refused(error) from error
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise UnusableService(f"no answer from {self._url}: {reason}") from error
        except ValidationError as error:
            raise UnusableService(f"{self._url} is no zeus-service of this version") from error

    def _refused(self, error: HTTPError) -> UnusableService:
        try:
            detail = json.loads(error.read())["detail"]
        except (ValueError, KeyError, TypeError):
            return UnusableService(f"{self._url} is no zeus-service: it answered {error.code}")
        needs_token = _NEEDS_TOKEN if error.code in (401, 403) else ""
        return UnusableService(f"{self._url}: {detail}{needs_token}")


class _NoRedirects(HTTPRedirectHandler):
    """A redirect is an error: it could take the token to another host."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Called by the opener."""
