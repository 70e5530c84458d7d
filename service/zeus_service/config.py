"""The service's configuration: environment variables `ZEUS_BSO_*`, or a `.env` file."""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from dotenv import dotenv_values
from flask import current_app
from platformdirs import user_data_path
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
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
"""The driver for each kind of database, whichever the URL names."""

MIN_TOKEN = 16
"""Characters of a token; shorter ones can be guessed."""

_TOKEN = f"[!-~]{{{MIN_TOKEN},}}"

_PREFIX = "ZEUS_BSO_"

_SECRETS = ("database_url", "database_password", "token", "read_token")
"""Settings that can be read from a file, and whose values appear in no message."""


def _host_names(names: str) -> str:
    for name in names.split(","):
        if "/" in name or name.count(":") == 1:  # an IPv6 address has more of these
            raise ValueError("remove the port and the scheme; only host names are allowed")
    return names


def _default_database_url() -> str:
    return f"sqlite:///{user_data_path('zeus-service') / 'zeus.sqlite3'}"


class Config(BaseModel):
    """The settings: `load_config` reads each from the variable `ZEUS_BSO_...` of its name.

    Args:
        database_url: SQLAlchemy URL: `sqlite:///...`, `postgresql://...`, or `mysql://...` for
            MySQL and MariaDB. A relative SQLite path is relative to the current directory.
            Default: one SQLite file in the user's data directory.
        database_password: Password to insert into the URL, without escapes.
        token: Bearer tokens that may read and write, separated by commas, so that they can be
            rotated: add the new one, distribute it, remove the old one. Printable ASCII without
            spaces, at least 16 characters. Default: requests need no token, and the service
            listens on loopback only.
        read_token: Bearer tokens that may only read, in the same form.
        insecure: Listen on any address without a token. Anyone who can reach
            the network then has full access, and so does any web page open in a browser on it.
        allowed_hosts: Names of the service in addition to loopback names, separated by commas.
            Default: any name if a token or `ZEUS_BSO_INSECURE` is set, otherwise only loopback
            names.
        currency: Currency of both prices, such as `EUR`; pages show it before an amount.
        price_per_kwh: Price of one kWh; if set, savings are also shown as money.
        price_per_gpu_hour: Price of one hour of one GPU; if set, savings are also shown as money.
        carbon_intensity: Grams of CO2 equivalent per kWh; if set, savings are also shown as CO2e.
        log_level: `DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`.
        log_format: `text`, or `json` for one JSON object per line.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)  # it may be a secret

    database_url: str = Field(default_factory=_default_database_url, repr=False)
    database_password: SecretStr | None = None
    token: SecretStr | None = None
    read_token: SecretStr | None = None
    insecure: bool = False
    allowed_hosts: Annotated[str, AfterValidator(_host_names)] = ""
    currency: Annotated[str, Field(pattern=r"^\S{1,8}$")] = "\N{CURRENCY SIGN}"
    price_per_kwh: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    price_per_gpu_hour: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    carbon_intensity: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(str.upper)
    ] = "INFO"
    log_format: Annotated[Literal["text", "json"], BeforeValidator(str.lower)] = "text"

    @field_validator("token", "read_token")
    @classmethod
    def _cannot_be_guessed(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            tokens = _split(value.get_secret_value())
            if not (tokens and all(re.fullmatch(_TOKEN, each) for each in tokens)):
                raise ValueError(
                    f"it must be at least {MIN_TOKEN} printable ASCII characters without spaces, "
                    "as from `openssl rand -hex 32`; separate several tokens with commas"
                )
        return value

    @field_validator("database_url")
    @classmethod
    def _usable_url(cls, value: str) -> str:
        """The URL with the service's own driver, and the absolute path of an SQLite file.

        What only the driver or the server can tell is reported when it is first asked.
        """
        try:
            url = make_url(value)
        except (ArgumentError, ValueError):
            raise ValueError("not a database URL; use one such as sqlite:///zeus.sqlite3") from None
        if "@" in (url.host or ""):  # the end of the password would be shown as the host
            raise ValueError("the password contains an @; write it as %40")
        kind = url.drivername.partition("+")[0]
        if kind not in _DRIVERS:
            raise ValueError(f"{kind} is not supported; use sqlite, postgresql, mysql or mariadb")
        url = url.set(drivername=_DRIVERS[kind])
        if url.get_backend_name() == "sqlite":
            if not url.database or url.database == ":memory:":
                raise ValueError("SQLite needs a file that all workers share: sqlite:///PATH")
            if url.host or url.query:
                raise ValueError("an SQLite database's URL has only a path: sqlite:///PATH")
            url = url.set(database=str(Path(url.database).expanduser().absolute()))
        return url.render_as_string(hide_password=False)

    @model_validator(mode="after")
    def _reading_is_not_writing(self) -> Self:
        if set(self.tokens) & set(self.read_tokens):
            raise ValueError(
                "ZEUS_BSO_READ_TOKEN and ZEUS_BSO_TOKEN share a token, so readers could write; "
                "use different tokens"
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
        return _split(self.token.get_secret_value()) if self.token else []

    @property
    def read_tokens(self) -> list[str]:
        """Tokens that may only read."""
        return _split(self.read_token.get_secret_value()) if self.read_token else []

    @property
    def hosts(self) -> frozenset[str]:
        """The names of `allowed_hosts`, in small letters."""
        return frozenset(_split(self.allowed_hosts.lower()))

    @property
    def has_tokens(self) -> bool:
        """Whether a request needs a token."""
        return bool(self.tokens or self.read_tokens)


def _split(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


VARIABLES = tuple(
    f"{_PREFIX}{name.upper()}" for name in (*Config.model_fields, *(f"{n}_file" for n in _SECRETS))
)
"""The variables of all settings, and of the files that secrets can be read from."""


def load_config() -> Config:
    """The configuration, from `.env` and the environment, which wins.

    Each secret can be read from the file that `ZEUS_BSO_..._FILE` names.

    Raises:
        Unusable: It is invalid; the message has a line for each problem.
    """
    try:
        in_file = dotenv_values(".env", encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Unusable(f"the .env file is not UTF-8: {error}") from error
    except OSError as error:
        raise Unusable(f"cannot read the .env file: {error.strerror}") from error
    settings = _settings(in_file) | _settings(os.environ)
    for name in _SECRETS:
        if path := settings.pop(f"{name}_file", None):
            variable = f"{_PREFIX}{name.upper()}"
            if name in settings:
                raise Unusable(f"{variable} and {variable}_FILE are both set; keep one")
            settings[name] = _read_secret(f"{variable}_FILE", path)
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        raise Unusable(problems(error)) from error


def _settings(variables: Mapping[str, str | None]) -> dict[str, str]:
    """The settings among variables; an empty one is not given."""
    return {
        name.upper().removeprefix(_PREFIX).lower(): value
        for name, value in variables.items()
        if name.upper().startswith(_PREFIX) and value
    }


def _read_secret(variable: str, path: str) -> str:
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise Unusable(f"{variable}: cannot read {path}: {reason}") from None
    if not secret:
        raise Unusable(f"{variable}: {path} is empty")
    return secret


def current_config() -> Config:
    """The configuration of the application in whose context this is called."""
    config: Config = current_app.extensions["zeus_config"]
    return config


def problems(error: ValidationError) -> str:
    """The problems of the configuration, one per line, without secrets."""
    lines = []
    for found in error.errors():
        message = found["msg"].removeprefix("Value error, ")
        if found["loc"]:
            name = "_".join(map(str, found["loc"]))
            variable = f"{_PREFIX}{name.upper()}"
            value = "" if name in _SECRETS else f"={found['input']!r}"
            message = f"{variable}{value}: {message}"
            if found["type"] == "extra_forbidden":  # a misspelt setting would do nothing
                (nearest,) = difflib.get_close_matches(variable, VARIABLES, n=1, cutoff=0)
                message = f"unknown setting {variable}; did you mean {nearest}?"
        lines.append(message)
    return "\n".join(lines)
