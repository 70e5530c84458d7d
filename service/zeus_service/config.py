"""The service's configuration: environment variables `ZEUS_BSO_*`, or a `.env` file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from platformdirs import user_data_path
from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError


def _default_database_url() -> str:
    return f"sqlite:///{user_data_path('zeus-service') / 'zeus.sqlite3'}"


class Config(BaseSettings):
    """What can be set.

    Args:
        database_url: SQLAlchemy URL (`ZEUS_BSO_DATABASE_URL`). A relative SQLite path counts from
            the current directory. Default: one SQLite file in the user's data directory.
        log_level: `ZEUS_BSO_LOG_LEVEL`.
        echo_sql: Log every SQL statement (`ZEUS_BSO_ECHO_SQL`).
    """

    model_config = SettingsConfigDict(
        env_prefix="ZEUS_BSO_",
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        extra="ignore",
    )

    database_url: str = Field(default_factory=_default_database_url)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    echo_sql: bool = False

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("database_url")
    @classmethod
    def _absolute(cls, value: str) -> str:
        try:
            url = make_url(value)
            url.get_dialect().import_dbapi()
        except ArgumentError:
            raise ValueError("not a database URL, such as sqlite:///zeus.sqlite3") from None
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise ValueError(f"no driver for {value.partition(':')[0]} here: {error}") from None
        if url.get_backend_name() == "sqlite":
            if not url.database or url.database == ":memory:":
                raise ValueError("a SQLite database must be a file: workers could not share it")
            url = url.set(database=str(Path(url.database).expanduser().absolute()))
        return url.render_as_string(hide_password=False)

    @property
    def sqlite_path(self) -> Path | None:
        """The SQLite file, None on another database."""
        url = make_url(self.database_url)
        return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None
