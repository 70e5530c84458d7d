"""The service's configuration: environment variables `ZEUS_BSO_*`, or a `.env` file."""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from dotenv import dotenv_values
from flask import current_app
from platformdirs import user_data_path
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from zeus_service.errors import Unusable

_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
}
"""The driver for each kind of database, whichever the URL names: that of the Zeus project's server
names asynchronous ones."""

_LOG_LEVELS = {"WARN": "WARNING", "NOTSET": "DEBUG"}
"""Other names of levels, in the configuration of the Zeus project's server."""

MIN_SECRET = 16
"""Characters of a token or a key; shorter ones can be guessed."""

_PREFIX = "ZEUS_BSO_"
_OF_KUBERNETES = re.compile(
    r"""(\w+_)?(
        SERVICE_HOST=[0-9a-f.:]+ | SERVICE_PORT(_\w+)?=\d+
        | PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://[0-9a-f.:[\]]+
        | PORT_\d+_(TCP|UDP|SCTP)_(PROTO=(tcp|udp|sctp) | PORT=\d+ | ADDR=[0-9a-f.:]+)
    )""",
    re.VERBOSE,
)
"""The rest of variables, with their values, that Kubernetes sets for a Service whose name begins
with `zeus-bso`."""

_OF_ZEUS = ("DB_USER", "DB_PASSWORD", "ROOT_PASSWORD", "SERVER_PORT")
"""The rest of variables in the Zeus project's `.env` that only its containers read."""

_SECRETS = ("database_url", "database_password", "token", "read_token", "secret_key")


def _log_level(name: str) -> str:
    return _LOG_LEVELS.get(name.upper(), name.upper())


def _host_names(names: str) -> str:
    for name in names.split(","):
        if "/" in name or name.count(":") == 1:  # an IPv6 address has more of these
            raise ValueError("a host name has neither a port nor a scheme")
    return names


def _default_database_url() -> str:
    return f"sqlite:///{user_data_path('zeus-service') / 'zeus.sqlite3'}"


class Config(BaseSettings):
    """The settings: each is the variable `ZEUS_BSO_...` of its name.

    A secret can be read from the file that `..._file` names, such as `database_password_file`: the
    secret that the database's own container reads.

    Args:
        database_url: SQLAlchemy URL: `sqlite:///...`, `postgresql://...` or `mysql://...` (MariaDB
            too). A relative SQLite path is relative to the current directory. Default: one SQLite
            file in the user's data directory.
        database_password: Password to insert into the URL, without escapes.
        token: Bearer tokens that may read and write, separated by commas, so that they can be
            rotated: add the new one, distribute it, remove the old one. Printable ASCII without
            blanks, at least 16 characters. Default: requests need no token, and the service
            listens on loopback only.
        read_token: Bearer tokens that may only read, in the same form.
        secret_key: Signs the cookies of those who sign in on the page; at least 16 characters.
            Default: one that is made once and stored in the database.
        insecure: Listen on any address without a token (`ZEUS_BSO_INSECURE`). Whoever reaches the
            network may then do anything, and so may any browser inside it.
        allowed_hosts: Names of the service in addition to those of loopback, separated by commas.
            Default: any name, but of loopback only if the service listens there without a token.
        zeus_wire: Serve the Zeus project's own wire. If tokens are configured, its clients send
            one as the password in the service's URL.
        price_per_kwh: What a kWh costs, in your currency, for what was saved.
        carbon_intensity: Grams of CO2 equivalent for each kWh, for what was saved.
        log_level: `DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`.
        log_format: `text`, or `json` for one JSON object a line.
        echo_sql: Log every SQL statement.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
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
    secret_key: SecretStr | None = None
    secret_key_file: Path | None = None
    insecure: bool = False
    allowed_hosts: Annotated[str, AfterValidator(_host_names)] = ""
    zeus_wire: bool = True
    price_per_kwh: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    carbon_intensity: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_log_level)
    ] = "INFO"
    log_format: Annotated[Literal["text", "json"], BeforeValidator(str.lower)] = "text"
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

    @field_validator("token", "read_token", "secret_key")
    @classmethod
    def _cannot_be_guessed(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is None:
            return None
        is_key = info.field_name == "secret_key"
        secrets = [value.get_secret_value()] if is_key else _split(value)
        if not is_key and not (secrets and all(re.fullmatch("[!-~]+", each) for each in secrets)):
            raise ValueError(
                "a token must be printable ASCII without blanks; several are separated by commas"
            )
        if any(len(each) < MIN_SECRET for each in secrets):
            raise ValueError(
                f"it must have at least {MIN_SECRET} characters: try `openssl rand -hex 32`"
            )
        return value

    @field_validator("database_url")
    @classmethod
    def _usable_url(cls, value: str) -> str:
        """The URL with the service's own driver, and the absolute path of a SQLite file.

        What only the driver or the server can tell is reported when it is first asked.
        """
        try:
            url = make_url(value)
        except (ArgumentError, ValueError):
            raise ValueError("not a database URL, such as sqlite:///zeus.sqlite3") from None
        if "@" in (url.host or ""):  # the end of the password would be shown as the host
            raise ValueError("the password contains an @; write it as %40")
        kind = url.drivername.partition("+")[0]
        if kind not in _DRIVERS:
            raise ValueError(f"{kind} is not supported; use sqlite, postgresql, mysql or mariadb")
        url = url.set(drivername=_DRIVERS[kind])
        if url.get_backend_name() == "sqlite":
            if not url.database or url.database == ":memory:":
                raise ValueError("a SQLite database must be a file: workers could not share it")
            if url.host or url.query:
                raise ValueError("a SQLite database's URL has only a path: sqlite:///PATH")
            url = url.set(database=str(Path(url.database).expanduser().absolute()))
        return url.render_as_string(hide_password=False)

    @model_validator(mode="after")
    def _reading_is_not_writing(self) -> Self:
        if set(self.tokens) & set(self.read_tokens):
            raise ValueError(
                "a token of ZEUS_BSO_READ_TOKEN is also one of ZEUS_BSO_TOKEN, so it could write; "
                "make another one for reading"
            )
        return self

    @model_validator(mode="after")
    def _put_password(self) -> Self:
        if self.database_password is not None and self.sqlite_path is None:
            url = self._url.set(password=self.database_password.get_secret_value())
            self.database_url = url.render_as_string(hide_password=False)
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
    def hosts(self) -> frozenset[str]:
        """The names of `allowed_hosts`, in small letters."""
        names = (name.strip().lower() for name in self.allowed_hosts.split(","))
        return frozenset(name for name in names if name)

    @property
    def has_tokens(self) -> bool:
        """Whether a request needs a token."""
        return bool(self.tokens or self.read_tokens)


def _split(tokens: SecretStr | None) -> list[str]:
    given = tokens.get_secret_value() if tokens else ""
    return [token for part in given.split(",") if (token := part.strip())]


def load_config() -> Config:
    """The configuration, from the environment and `.env`.

    Raises:
        Unusable: It is invalid; the message has a line for each problem.
    """
    try:
        _check_names({**dotenv_values(".env", encoding="utf-8"), **os.environ})
        return Config()
    except ValidationError as error:
        raise Unusable(problems(error)) from error
    except UnicodeDecodeError as error:
        raise Unusable(f"the .env file is not UTF-8: {error}") from error
    except OSError as error:
        raise Unusable(f"cannot read the .env file: {error.strerror}") from error


def current_config() -> Config:
    """The configuration of the application in whose context this is called."""
    config: Config = current_app.extensions["zeus_config"]
    return config


def _check_names(given: Mapping[str, str | None]) -> None:
    """Refuse variables with the prefix that are not settings: a misspelt one would do nothing."""
    known = [f"{_PREFIX}{name}".upper() for name in Config.model_fields]
    values = {name.upper(): value for name, value in given.items()}
    unknown = []
    for name in sorted(values.keys() - known):
        rest = name.removeprefix(_PREFIX)
        is_others = rest in _OF_ZEUS or _OF_KUBERNETES.fullmatch(f"{rest}={values[name]}")
        if rest != name and not is_others:
            (nearest,) = difflib.get_close_matches(name, known, n=1, cutoff=0)
            unknown.append(f"{name} is not a setting; use {nearest}, or remove it")
    if unknown:
        raise Unusable("\n".join(unknown))


def problems(error: ValidationError) -> str:
    """The problems of the configuration, one per line, without secrets."""
    lines = []
    for found in error.errors():
        message = found["msg"].removeprefix("Value error, ")
        if found["loc"]:
            name = "_".join(map(str, found["loc"]))
            value = "" if name in _SECRETS else f"={found['input']!r}"
            message = f"ZEUS_BSO_{name.upper()}{value}: {message}"
        lines.append(message)
    return "\n".join(lines)
