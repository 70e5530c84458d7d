"""The application for `gunicorn -c service/gunicorn.conf.py zeus_service.wsgi:app`.

That configuration refuses to listen beyond loopback without a token, and prepares the database;
other servers do neither.
"""

from zeus_service import create_app
from zeus_service.serving.gunicorn import server_config

app = create_app(server_config())
