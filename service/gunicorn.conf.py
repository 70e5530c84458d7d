"""For starting gunicorn directly: `gunicorn -c gunicorn.conf.py zeus_service.wsgi:app`."""

from zeus_service.server import SETTINGS

globals().update(SETTINGS)
