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
    # asynchronous drivers, in the configuration of the Zeus project's server
    "sqlite+aiosqlite": "sqlite",
    "postgresql+asyncpg": "postgresql+psycopg",
    "mysql+asyncmy": "mysql+pymysql",
    "mysql+aiomysql": "mysql+pymysql",
    "mariadb+asyncmy": "mysql+pymysql",
    "mariadb+aiomysql": "mysql+pymysql",
}
_NOT_SET_BY_URL = {
    "auth_plugin_map",
    "autocommit",
    "client_encoding",
    "cursorclass",
    "defer_connect",
    "ssl_disabled",
    "use_unicode",
}
"""Options that drivers take any text for, and then fail or misbehave."""

_LOG_LEVELS = {"WARN": "WARNING", "NOTSET": "DEBUG"}
"""Other names of levels, in the configuration of the Zeus project's server."""

MIN_TOKEN = 16
"""Characters of a token; shorter ones can be guessed."""

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
            raise ValueError("a name of a host has no port and no scheme")
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

    @field_validator("token", "read_token")
    @classmethod
    def _is_sendable(cls, value: SecretStr | None) -> SecretStr | None:
        tokens = _split(value)
        if value and not (tokens and all(re.fullmatch("[!-~]+", token) for token in tokens)):
            raise ValueError(
                "a token must be printable ASCII without blanks; several are separated by commas"
            )
        if any(len(token) < MIN_TOKEN for token in tokens):
            raise ValueError(
                f"a token must have at least {MIN_TOKEN} characters: try `openssl rand -hex 32`"
            )
        return value

    @field_validator("secret_key")
    @classmethod
    def _is_long(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < MIN_TOKEN:
            raise ValueError(
                f"a key must have at least {MIN_TOKEN} characters: try `openssl rand -hex 32`"
            )
        return value

    @field_validator("database_url")
    @classmethod
    def _absolute(cls, value: str) -> str:
        try:
            url = make_url(value)
        except (ArgumentError, ValueError):
            raise ValueError("not a database URL, such as sqlite:///zeus.sqlite3") from None
        if "@" in (url.host or ""):  # the end of the password would be shown as the host
            raise ValueError("the password contains an @; write it as %40")
        if url.drivername not in {*_DRIVERS, *_DRIVERS.values()}:
            raise ValueError(
                f"{url.drivername} is not supported; use sqlite, postgresql, mysql or mariadb"
            )
        url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
        if "%00" in value:
            raise ValueError("it contains a NUL character, %00")
        if (url.port or 0) > 65535:
            raise ValueError(f"there is no port {url.port}")
        if url.get_backend_name() == "sqlite":
            if not url.database or url.database == ":memory:":
                raise ValueError("a SQLite database must be a file: workers could not share it")
            if url.host or url.query:
                raise ValueError("a SQLite database's URL has only a path: sqlite:///PATH")
            url = url.set(database=str(Path(url.database).expanduser().absolute()))
            return url.render_as_string(hide_password=False)
        try:
            (url.host or "").encode("idna")
        except UnicodeError:
            raise ValueError(f"{url.host} cannot be the name of a host") from None
        if url.get_backend_name() == "mysql" and not url.database:
            raise ValueError("it names no database: mysql://USER@HOST/DATABASE")
        if url.query and not _is_accepted(url):
            each = [name for name in url.query if not _is_accepted(url, name)]
            names = ", ".join(each or url.query)
            raise ValueError(f"{url.get_driver_name()} cannot use these options in it: {names}")
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


def _is_accepted(url: URL, only: str | None = None) -> bool:
    """Whether the driver accepts the options in a URL's query, or only one; it does not connect."""
    query = url.query if only is None else {only: url.query[only]}
    dialect = url.get_dialect()
    try:
        _, options = dialect().create_connect_args(url.set(query=query))
        if url.get_backend_name() == "postgresql":
            from psycopg.conninfo import make_conninfo  # not before gevent's patch

            make_conninfo(**options)
        else:
            dialect.import_dbapi().connect(**{**options, "defer_connect": True})
    except Exception:  # noqa: BLE001 - PyMySQL raises any, such as AttributeError
        return False
    charset = str(query.get("charset", "utf8mb4"))
    return _NOT_SET_BY_URL.isdisjoint(query) and charset.lower().startswith("utf8")


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
    """Refuse variables with the prefix that are no setting: one that is misspelt does nothing."""
    known = [f"{_PREFIX}{name}".upper() for name in Config.model_fields]
    values = {name.upper(): value for name, value in given.items()}
    unknown = []
    for name in sorted(values.keys() - known):
        rest = name.removeprefix(_PREFIX)
        is_others = rest in _OF_ZEUS or _OF_KUBERNETES.fullmatch(f"{rest}={values[name]}")
        if rest != name and not is_others:
            (nearest,) = difflib.get_close_matches(name, known, n=1, cutoff=0)
            unknown.append(f"{name} is no setting; is {nearest} meant? Otherwise remove it")
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
