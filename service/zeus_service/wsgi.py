"""The application that gunicorn serves: `gunicorn zeus_service.wsgi:app`."""

from zeus_service import create_app

app = create_app()
