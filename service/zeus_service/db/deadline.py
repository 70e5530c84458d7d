"""`deadline`: how long a worker waits for a database that does not answer."""

from collections.abc import Iterator
from contextlib import contextmanager

from gevent import Timeout, monkey
from sqlalchemy import exc


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Bound how long a block takes; SQLAlchemy drops a connection that waits for the database then.

    A server may hang while its host still acknowledges what it is sent, so that neither TCP's
    timeouts nor the server's own end a wait. Outside a worker of gunicorn's there is no bound: an
    operator's commands may take long.

    Raises:
        sqlalchemy.exc.TimeoutError: The block takes longer.
    """
    if not monkey.is_module_patched("socket"):
        yield
        return
    with Timeout(seconds) as timeout:
        try:
            yield
        except Timeout as error:
            if error is not timeout:
                raise  # of a block around this one
            raise exc.TimeoutError(f"the database has not answered within {seconds:g} s") from None
