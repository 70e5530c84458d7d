"""The application factory."""

import numpy.random  # noqa: F401 - else the first start of a trial would import it
from apiflask import APIFlask
from flask_migrate import Migrate
from sqlalchemy.engine import make_url

from zeus_service import __version__
from zeus_service.api.access import set_up_access
from zeus_service.api.monitoring import set_up_monitoring
from zeus_service.api.openapi import set_up_openapi
from zeus_service.api.problems import set_up_errors
from zeus_service.api.v1 import JobIdConverter, StrictJSON, v1
from zeus_service.api.zeus_wire import zeus_wire
from zeus_service.config import Config, load_config
from zeus_service.db.migrate import MIGRATIONS, prepare
from zeus_service.db.session import engine_options, set_up
from zeus_service.db.tables import db
from zeus_service.pages.routes import pages


def make_app(config: Config | None = None) -> APIFlask:
    """Create the WSGI application; see `zeus_service.create_app`."""
    config = config or load_config()
    app = APIFlask(
        "zeus_service",
        title="zeus-service",
        version=__version__,
        docs_path=None,
        static_folder=None,  # type: ignore[arg-type] # as Flask takes it: without a route for it
    )
    app.json = StrictJSON(app)
    app.extensions["zeus_config"] = config
    app.config["SQLALCHEMY_DATABASE_URI"] = config.database_url
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = engine_options(make_url(config.database_url))
    app.config["MAX_CONTENT_LENGTH"] = 64 * 1024
    app.config["VALIDATION_ERROR_DESCRIPTION"] = "invalid"
    app.url_map.merge_slashes = False
    app.url_map.converters["job_id"] = JobIdConverter

    db.init_app(app)
    with app.app_context():
        set_up(db.engine)
    Migrate(app, db, directory=MIGRATIONS)
    set_up_monitoring(app)
    set_up_access(app)
    set_up_errors(app)
    set_up_openapi(app)
    app.register_blueprint(v1)
    app.register_blueprint(zeus_wire)
    app.register_blueprint(pages)
    return app


def make_ready_app() -> APIFlask:
    """Create the application to serve, and prepare its database.

    Raises:
        Unusable: The configuration or the database is unusable.
    """
    app = make_app()
    prepare(app)
    return app
