"""The application factory."""

from __future__ import annotations

from typing import Any

from apiflask import APIBlueprint, APIFlask
from flask.json.provider import DefaultJSONProvider
from flask.typing import ResponseReturnValue
from pydantic_core import from_json
from sqlalchemy.pool import NullPool
from werkzeug.exceptions import BadRequest

from zeus_service import __version__
from zeus_service.api.errors import set_up_errors
from zeus_service.api.v1 import MAX_BODY_BYTES, JobIdConverter, v1
from zeus_service.config import Config
from zeus_service.extensions import db, migrate, set_up_sqlite

health = APIBlueprint("health", __name__)


class StrictJSON(DefaultJSONProvider):
    """JSON as the standard has it: no NaN, nothing infinite, no nesting that ends the stack."""

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        """Parse a request's body.

        Raises:
            BadRequest: It is malformed, or no object.
        """
        del kwargs
        try:
            value = from_json(s, allow_inf_nan=False)
        except ValueError as error:
            raise BadRequest(f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise BadRequest("the body must be a JSON object")
        return value


@health.get("/healthz")
@health.doc(responses={200: "The process answers."})
def healthz() -> ResponseReturnValue:
    """Tell that the process answers."""
    return {"status": "ok", "version": __version__}


def make_app(config: Config | None = None) -> APIFlask:
    """Make the WSGI application; see `zeus_service.create_app`."""
    config = config or Config()
    app = APIFlask("zeus_service", title="zeus-service", version=__version__, docs_path=None)
    app.json = StrictJSON(app)
    app.config["SQLALCHEMY_DATABASE_URI"] = config.database_url
    if config.sqlite_path:
        # A connection each time is cheap, and none crosses a fork or outlives its file.
        app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {"poolclass": NullPool}
    app.config["SQLALCHEMY_ECHO"] = config.echo_sql
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.config["VALIDATION_ERROR_DESCRIPTION"] = "invalid"
    app.logger.setLevel(config.log_level)
    app.url_map.merge_slashes = False
    app.url_map.converters["job_id"] = JobIdConverter

    db.init_app(app)
    with app.app_context():
        if config.sqlite_path:
            set_up_sqlite(db.engine)
    migrate.init_app(app, db)
    set_up_errors(app)
    app.register_blueprint(v1)
    app.register_blueprint(health)
    return app
