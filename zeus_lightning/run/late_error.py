"""`LateError`: an error that `fit` raises after it has ended in order."""

from lightning.pytorch import Callback, Trainer

from zeus_lightning.program.internals import after_fit


class LateError:
    """Raises an error as the last step of `fit`, in place of returning.

    An error of a hook would be an abort: Lightning would skip the remaining `teardown` hooks, call
    each `on_exception`, where checkpoints are saved, and close the loggers as failed. So this
    raises after all of that, and again in the callback's `on_exception`, the first to be called.

    Args:
        error: The error.
        callback: Its `teardown` creates this; its `on_exception` calls `arrived`.
        trainer: The Trainer whose `fit` ends.
    """

    def __init__(self, error: Exception, callback: Callback, trainer: Trainer) -> None:
        self._error = error
        self._callback = callback
        self._trainer = trainer
        self._callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._undo = after_fit(trainer, self._raise)

    def _raise(self) -> None:
        others = [each for each in self._callbacks if each is not self._callback]
        self._trainer.callbacks = [self._callback, *others]  # type: ignore[attr-defined]
        raise self._error

    def arrived(self, exception: BaseException) -> Exception | None:
        """Undo the changes to the Trainer; return the error if it is what ends `fit`, to be raised.

        Its traceback starts where it is raised next. Another exception than that was raised by a
        later `teardown`, and comes first.
        """
        self.undo()
        if exception is not self._error:
            return None
        state = self._trainer.state
        state.status, state.stage = type(state.status)("finished"), None
        return self._error.with_traceback(None)

    def undo(self) -> None:
        """Undo the changes to the Trainer."""
        self._undo()
        self._trainer.callbacks = self._callbacks  # type: ignore[attr-defined]
