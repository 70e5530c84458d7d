"""The application for `gunicorn -c service/gunicorn.conf.py zeus_service.wsgi:app`.

Another server must itself see to who can reach it: that configuration is what refuses to listen
beyond loopback without a token, and what prepares the database.
"""

from zeus_service import create_app

app = create_app()
