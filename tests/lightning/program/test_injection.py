"""A batch size is set wherever the program has it, and restored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from programs import Net

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.injection import Injection


class Program(Net):
    """Has a batch size, as an attribute and as a hyperparameter."""

    def __init__(self, batch_size: int = 8, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.batch_size = batch_size

    trainer = None  # an unattached module raises


def test_every_holder_of_a_value_is_set_and_restored() -> None:
    module = Program()
    injection = Injection(module)
    injection.set_batch_size("batch_size", 32)
    assert (module.batch_size, module.hparams.batch_size) == (32, 32)
    injection.undo()
    assert (module.batch_size, module.hparams.batch_size) == (8, 8)


def test_a_value_that_somebody_else_has_set_since_is_left() -> None:
    module = Program()
    injection = Injection(module)
    injection.set_batch_size("batch_size", 32)
    module.batch_size = 64
    injection.undo()
    assert (module.batch_size, module.hparams.batch_size) == (64, 8)


def test_a_checkpoint_gets_the_programs_own_hyperparameters() -> None:
    injection = Injection(Program())
    injection.set_batch_size("batch_size", 32)
    checkpoint: dict[str, Any] = {
        "hyper_parameters": {"batch_size": 32, "lr": 0.1},
        "datamodule_hyper_parameters": {"batch_size": 5},
    }
    injection.restore_in(checkpoint)
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
    injection = Injection(module)
    injection.set_batch_size("data.train_batch_size", 32)
    assert module.data.train_batch_size == module.hparams["data"]["train_batch_size"] == 32
    checkpoint: dict[str, Any] = {"hyper_parameters": dict(module.hparams)}
    injection.restore_in(checkpoint)
    assert checkpoint == {
        "hyper_parameters": {"data": {"train_batch_size": 8, "val_batch_size": 16}}
    }
    assert module.hparams["data"]["train_batch_size"] == 32  # still trains with it
    injection.undo()
    assert module.data.train_batch_size == module.hparams["data"]["train_batch_size"] == 8
    injection.set_batch_size("nothing.such", 32)
    assert not hasattr(module, "nothing")


def test_an_attribute_that_cannot_be_set_is_an_error_that_names_it() -> None:
    class Fixed(Net):
        batch_size = property(lambda self: 8)
        trainer = None

    with pytest.raises(ZeusConfigError, match="batch_size cannot be set to 32 on Fixed"):
        Injection(Fixed()).set_batch_size("batch_size", 32)


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
    ("config", "cause"),
    [(ReadOnlyConfig(batch_size=8), NotImplementedError), (FrozenModel(), ValueError)],
)
def test_a_config_that_cannot_be_changed_is_an_error_of_one_line_with_its_cause(
    config: Any, cause: type[Exception]
) -> None:
    class Configured(Net):
        trainer = None

    module = Configured()
    module.config = config
    message = f"config.batch_size cannot be set to 32 on {type(config).__name__} .*plain attribute"
    with pytest.raises(ZeusConfigError, match=message) as error:
        Injection(module).set_batch_size("config.batch_size", 32)
    assert isinstance(error.value.__cause__, cause)
    assert "\n" not in str(error.value)


def test_a_method_of_the_name_stays_and_none_is_set_and_restored() -> None:
    class Counts(Net):
        trainer = None

        def __init__(self, batch_size: int | None = None) -> None:
            super().__init__()
            self.save_hyperparameters()

        def batch_size(self, batch: list[Any]) -> int:
            return len(batch)

    module = Counts()
    injection = Injection(module)
    injection.set_batch_size("batch_size", 32)
    assert module.batch_size([1, 2]) == 2
    assert module.hparams.batch_size == 32
    injection.undo()
    assert module.hparams.batch_size is None


def test_a_property_that_follows_what_is_set_need_not_be_set_and_another_one_must() -> None:
    class Follows(Net):
        trainer = None
        batch_size = property(lambda self: self.hparams.batch_size)

        def __init__(self, batch_size: int = 8) -> None:
            super().__init__()
            self.save_hyperparameters()

    class Doubles(Follows):
        batch_size = property(lambda self: 2 * self.hparams.batch_size)

    module = Follows()
    injection = Injection(module)
    injection.set_batch_size("batch_size", 32)
    assert module.batch_size == 32
    injection.undo()
    assert module.batch_size == 8
    with pytest.raises(ZeusConfigError, match="batch_size cannot be set to 32 on Doubles"):
        Injection(Doubles()).set_batch_size("batch_size", 32)


def test_a_value_that_is_refused_raises_the_programs_own_error() -> None:
    class Picky(Net):
        trainer = None
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
        Injection(Picky()).set_batch_size("batch_size", 32)
