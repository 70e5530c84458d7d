"""A batch size is set wherever the program has it, and restored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from programs import Net

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.injection import Injection


class Program(Net):
    """Has a batch size as a hyperparameter, and perhaps others elsewhere."""

    trainer = None  # an unattached module raises

    def __init__(self, batch_size: int | None = 8, **attributes: Any) -> None:
        super().__init__()
        self.save_hyperparameters("batch_size")
        vars(self).update(attributes)


def injected(module: Net, name: str = "batch_size") -> Injection:
    injection = Injection(module)
    injection.set_batch_size(name, 32)
    return injection


def test_every_holder_of_a_value_is_set_and_restored_unless_somebody_else_has_set_it() -> None:
    module = Program()
    module.batch_size = 8
    injection = injected(module)
    assert (module.batch_size, module.hparams.batch_size) == (32, 32)
    injection.undo()
    assert (module.batch_size, module.hparams.batch_size) == (8, 8)
    injection = injected(module)
    module.batch_size = 64
    injection.undo()
    assert (module.batch_size, module.hparams.batch_size) == (64, 8)


def test_a_checkpoint_gets_the_programs_own_hyperparameters() -> None:
    checkpoint: dict[str, Any] = {
        "hyper_parameters": {"batch_size": 32, "lr": 0.1},
        "datamodule_hyper_parameters": {"batch_size": 5},
    }
    injected(Program()).restore_in(checkpoint)
    assert checkpoint["hyper_parameters"] == {"batch_size": 8, "lr": 0.1}
    assert checkpoint["datamodule_hyper_parameters"] == {"batch_size": 5}


def test_a_nested_value_is_set_restored_and_kept_out_of_checkpoints() -> None:
    class Nested(Net):
        trainer = None

        def __init__(self, data: dict[str, Any]) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.data = SimpleNamespace(**data)

    module = Nested({"train_batch_size": 8, "val_batch_size": 16})
    injection = injected(module, "data.train_batch_size")
    assert module.data.train_batch_size == module.hparams["data"]["train_batch_size"] == 32
    checkpoint: dict[str, Any] = {"hyper_parameters": dict(module.hparams)}
    injection.restore_in(checkpoint)
    own = {"train_batch_size": 8, "val_batch_size": 16}
    assert checkpoint == {"hyper_parameters": {"data": own}}
    assert module.hparams["data"]["train_batch_size"] == 32  # still trains with it
    injection.undo()
    assert module.data.train_batch_size == module.hparams["data"]["train_batch_size"] == 8
    injected(module, "nothing.such")
    assert not hasattr(module, "nothing")


class Fixed(Program):
    batch_size = property(lambda self: 8)


class Follows(Program):
    batch_size = property(lambda self: self.hparams.batch_size)


class Doubles(Program):
    batch_size = property(lambda self: 2 * self.hparams.batch_size)


class Method(Program):
    def batch_size(self, batch: list[Any]) -> int:
        return len(batch)


def test_a_property_that_follows_what_is_set_need_not_be_set() -> None:
    module = Follows()
    injection = injected(module)
    assert module.batch_size == 32
    injection.undo()
    assert module.batch_size == 8


def test_a_method_of_the_name_stays_and_none_is_set_and_restored() -> None:
    module = Method(batch_size=None)
    injection = injected(module)
    assert module.batch_size([1, 2]) == 2
    assert module.hparams.batch_size == 32
    injection.undo()
    assert module.hparams.batch_size is None


class ReadOnlyConfig(dict[str, Any]):
    """Refuses changes as a read-only config of OmegaConf does."""

    def __setitem__(self, name: str, value: Any) -> None:
        raise NotImplementedError(f"Cannot change read-only config\n    full_key: {name}")


class FrozenModel:
    """Refuses changes as a frozen model of pydantic does."""

    batch_size = 8

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError(f"1 validation error\n{name}\n  Instance is frozen")


@pytest.mark.parametrize(
    ("module", "name", "owner", "cause"),
    [
        (Fixed(), "batch_size", "Fixed", AttributeError),
        (Doubles(), "batch_size", "Doubles", AttributeError),
        (
            Program(config=ReadOnlyConfig(batch_size=8)),
            "config.batch_size",
            "ReadOnlyConfig",
            NotImplementedError,
        ),
        (Program(config=FrozenModel()), "config.batch_size", "FrozenModel", ValueError),
    ],
)
def test_a_value_that_cannot_be_set_is_an_error_of_one_line_with_its_cause(
    module: Net, name: str, owner: str, cause: type[Exception]
) -> None:
    message = f"^{name} cannot be set to 32 on {owner} .*make it a plain attribute$"
    with pytest.raises(ZeusConfigError, match=message) as error:
        injected(module, name)
    assert isinstance(error.value.__cause__, cause)
    assert "\n" not in str(error.value)


def test_a_value_that_is_refused_raises_the_programs_own_error() -> None:
    class Picky(Program):
        size = 8

        @property
        def batch_size(self) -> int:
            return self.size

        @batch_size.setter
        def batch_size(self, size: int) -> None:
            if size > 16:
                raise ValueError("too large")
            self.size = size

    with pytest.raises(ValueError, match="too large"):
        injected(Picky())
