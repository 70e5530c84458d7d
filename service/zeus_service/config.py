"""The service's configuration: environment variables `ZEUS_BSO_*`, or a `.env` file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from platformdirs import user_data_path
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
}

_SECRETS = ("database_url", "database_password", "token", "read_token")


def _default_database_url() -> str:
    return f"sqlite:///{user_data_path('zeus-service') / 'zeus.sqlite3'}"


class UnusableConfig(Exception):
    """The configuration has no sense; the message says what is wrong, a line each, no secret."""


class Config(BaseSettings):
    """What can be set.

    Args:
        database_url: SQLAlchemy URL (`ZEUS_BSO_DATABASE_URL`): `sqlite:///...`,
            `postgresql://...` or `mysql://...` (MariaDB too). A relative SQLite path counts from
            the current directory. Default: one SQLite file in the user's data directory.
        database_url_file: A file that holds it instead (`ZEUS_BSO_DATABASE_URL_FILE`).
        database_password: Goes into the URL (`ZEUS_BSO_DATABASE_PASSWORD`), as it is: nothing in it
            needs an escape.
        database_password_file: A file that holds it instead (`ZEUS_BSO_DATABASE_PASSWORD_FILE`),
            such as the secret that the database's own container reads.
        token: Bearer tokens that may read and write (`ZEUS_BSO_TOKEN`), separated by commas, so
            that they can be rotated: add the new one, hand it out, remove the old one. Printable
            ASCII without blanks. Default: nobody needs a token, and the service listens on
            loopback only.
        token_file: A file that holds them instead (`ZEUS_BSO_TOKEN_FILE`).
        read_token: Bearer tokens that may only read (`ZEUS_BSO_READ_TOKEN`), likewise.
        read_token_file: A file that holds them instead (`ZEUS_BSO_READ_TOKEN_FILE`).
        insecure: Listen on any address without a token (`ZEUS_BSO_INSECURE`).
        zeus_wire: Serve the Zeus project's own wire (`ZEUS_BSO_ZEUS_WIRE`), which has no
            authentication. Default: only while there are no tokens.
        log_level: `ZEUS_BSO_LOG_LEVEL`.
        log_format: `text`, or `json` for one JSON object a line (`ZEUS_BSO_LOG_FORMAT`).
        echo_sql: Log every SQL statement (`ZEUS_BSO_ECHO_SQL`).
    """

    model_config = SettingsConfigDict(
        env_prefix="ZEUS_BSO_",
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        extra="ignore",
        hide_input_in_errors=True,  # it may be a secret
    )

    database_url: str = Field(default_factory=_default_database_url, repr=False)
    database_url_file: Path | None = None
    database_password: SecretStr | None = None
    database_password_file: Path | None = None
    token: SecretStr | None = None
    token_file: Path | None = None
    read_token: SecretStr | None = None
    read_token_file: Path | None = None
    insecure: bool = False
    zeus_wire: bool | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = "text"
    echo_sql: bool = False

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in _SECRETS:
            path = values.get(f"{name}_file")
            if path is None:
                continue
            variable = f"ZEUS_BSO_{name.upper()}"
            if values.get(name) is not None:
                raise ValueError(f"{variable} and {variable}_FILE are both set; keep one")
            try:
                text = Path(path).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
                raise ValueError(f"{variable}_FILE: cannot read {path}: {reason}") from None
            if not text:
                raise ValueError(f"{variable}_FILE: {path} is empty")
            values = {**values, name: text}
        return values

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("log_format", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("token", "read_token")
    @classmethod
    def _is_sendable(cls, value: SecretStr | None) -> SecretStr | None:
        tokens = _split(value)
        if value and not (tokens and all(re.fullmatch("[!-~]+", token) for token in tokens)):
            raise ValueError(
                "a token must be printable ASCII without blanks; several are separated by commas"
            )
        return value

    @field_validator("database_url")
    @classmethod
    def _absolute(cls, value: str) -> str:
        try:
            url = make_url(value)
        except (ArgumentError, ValueError):
            raise ValueError("not a database URL, such as sqlite:///zeus.sqlite3") from None
        if "@" in (url.host or ""):  # else the end of the password would be shown as the host
            raise ValueError("the password holds an @; write it as %40")
        backend = url.drivername.partition("+")[0]
        drivername = _DRIVERS.get(backend)
        if drivername is None or url.drivername not in (backend, drivername):
            raise ValueError(
                f"{url.drivername} is not supported; use sqlite, postgresql, mysql or mariadb"
            )
        url = url.set(drivername=drivername)
        if url.get_backend_name() == "sqlite":
            if not url.database or url.database == ":memory:":
                raise ValueError("a SQLite database must be a file: workers could not share it")
            url = url.set(database=str(Path(url.database).expanduser().absolute()))
        return url.render_as_string(hide_password=False)

    @model_validator(mode="after")
    def _put_password(self) -> Self:
        if self.database_password is not None and self.sqlite_path is None:
            password = self.database_password.get_secret_value()
            url = self._url.set(password=password).render_as_string(hide_password=False)
            self.database_url = url
        return self

    @property
    def _url(self) -> URL:
        return make_url(self.database_url)

    @property
    def sqlite_path(self) -> Path | None:
        """The SQLite file, None on another database."""
        return Path(str(self._url.database)) if self._url.get_backend_name() == "sqlite" else None

    @property
    def shown_database(self) -> str:
        """The database's URL without what may be secret: the password and the query."""
        return self._url.set(query={}).render_as_string(hide_password=True)

    @property
    def tokens(self) -> list[str]:
        """Tokens that may read and write."""
        return _split(self.token)

    @property
    def read_tokens(self) -> list[str]:
        """Tokens that may only read."""
        return _split(self.read_token)

    @property
    def has_tokens(self) -> bool:
        """Whether a request needs a token."""
        return bool(self.tokens or self.read_tokens)

    @property
    def serves_zeus_wire(self) -> bool:
        """Whether the Zeus project's own wire is served."""
        return self.zeus_wire if self.zeus_wire is not None else not self.has_tokens


def _split(tokens: SecretStr | None) -> list[str]:
    given = tokens.get_secret_value() if tokens else ""
    return [token for part in given.split(",") if (token := part.strip())]


def load_config() -> Config:
    """The configuration, from the environment and `.env`.

    Raises:
        UnusableConfig: A variable has no valid value, or `.env` cannot be read.
    """
    try:
        return Config()
    except ValidationError as error:
        raise UnusableConfig(problems(error)) from error
    except UnicodeDecodeError as error:
        raise UnusableConfig(f"the .env file is not UTF-8: {error}") from error
    except OSError as error:
        raise UnusableConfig(f"cannot read the .env file: {error.strerror}") from error


def problems(error: ValidationError) -> str:
    """What is wrong with the configuration, a line each, and no secret."""
    lines = []
    for found in error.errors():
        message = found["msg"].removeprefix("Value error, ")
        if found["loc"]:
            name = "_".join(map(str, found["loc"]))
            value = "" if name in _SECRETS else f"={found['input']!r}"
            message = f"ZEUS_BSO_{name.upper()}{value}: {message}"
        lines.append(message)
    return "\n".join(lines)
