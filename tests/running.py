"""What runs within a `with`: servers and processes that tests start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Running(ABC):
    """Starts when the block is entered and has ended when it is left, however it is left."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it runs."""

    @abstractmethod
    def end(self) -> None:
        """End it if it runs, and wait until it has ended."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
