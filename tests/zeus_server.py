"""The Zeus project's own server, release 0.16, as a reference.

Its real logic on its real tables, in an SQLite database of this process; left out is its HTTP, and
SQLAlchemy's asyncio, which would need greenlet: an ordinary session stands in for the asynchronous
one.
"""

from __future__ import annotations

import asyncio
import sys
import types
import warnings
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool


class _AsyncSession:
    """An ordinary session whose queries may be awaited."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.add, self.add_all = session.add, session.add_all

    async def scalar(self, query: Any) -> Any:
        return self._session.scalar(query)

    async def scalars(self, query: Any) -> Any:
        return self._session.scalars(query)


@contextmanager
def _without_asyncio() -> Iterator[None]:
    names = ("sqlalchemy.ext.asyncio", "sqlalchemy.ext.asyncio.session")
    for name in names:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name])["AsyncSession"] = _AsyncSession
    yield
    for name in names:
        del sys.modules[name]


with _without_asyncio(), warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it is written for pydantic 1
    _package = "zeus.optimizer.batch_size"
    wire = import_module(f"{_package}.common")
    arms = import_module(f"{_package}.server.batch_size_state.models")
    mab = import_module(f"{_package}.server.mab")
    _optimizer = import_module(f"{_package}.server.optimizer")
    _schema = import_module(f"{_package}.server.database.schema")
    _services = import_module(f"{_package}.server.services.service")
    ServerError: type[Exception] = import_module(
        f"{_package}.server.exceptions"
    ).ZeusBSOServerBaseError


class ZeusServer:
    """What its routes do, one transaction each; an error of its own is a `ServerError`."""

    def __init__(self) -> None:
        self._engine = create_engine("sqlite://", poolclass=StaticPool)
        _schema.Base.metadata.create_all(self._engine)

    def register(self, spec: dict[str, Any]) -> None:
        self._do("register_job", wire.JobSpecFromClient(**spec))

    def start(self, job_id: str) -> dict[str, Any]:
        trial: dict[str, Any] = self._do("predict", job_id).dict()
        return trial

    def explores(self, trial: dict[str, Any]) -> bool:
        """Whether a trial is an exploration, or else a concurrent one."""
        key = {"job_id": trial["job_id"], "trial_number": trial["trial_number"]}
        with Session(self._engine) as session:
            kind = session.get_one(_schema.TrialTable, key).type
        return bool(kind == _schema.TrialType.Exploration)

    def report(self, result: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._do("report", wire.TrainingResult(**result)).dict()
        return answer

    def end(self, trial: dict[str, Any]) -> None:
        self._do("end_trial", wire.TrialId(**trial))

    def _do(self, name: str, given: Any) -> Any:
        with Session(self._engine) as session, session.begin():
            service = _services.ZeusService(_AsyncSession(session))
            done: Coroutine[Any, Any, Any] = getattr(
                _optimizer.ZeusBatchSizeOptimizer(service), name
            )(given)
            return asyncio.run(done)
