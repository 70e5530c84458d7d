"""`JobArguments`: a job's arguments, checked, and the job they make with a program."""

import math
import operator
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from inspect import isfunction, unwrap
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.messages import MAX_INTEGER, MAX_METRIC, JobSpec, shortest_decimal
from zeus_lightning.program import batch_size as sizes
from zeus_lightning.program.lr_scaling import LRScaling
from zeus_lightning.program.metric import Mode, mode_of_name, monitor_of

READ_FROM_PROGRAM = {
    "default_batch_size": "default_batch_size",
    "batch_sizes": "batch_sizes",
    "max_epochs": "max_epochs",
    "monitor": "monitor",
    "mode": "higher_is_better",
}
"""The arguments for which the program has a value, and the fields of the job they become."""

_POLICY_OPTIONS = ("num_pruning_rounds", "window_size", "seed")
"""The options of a policy, integers; the service checks their ranges."""

_OMITTED = [each.name for each in fields(JobSpec) if each.default is not MISSING]
"""Fields of a job that are not sent unless they are given."""


PolicyOptions = dict[str, str | int]
"""A policy's options: `name`, `num_pruning_rounds`, `window_size` and `seed`, each optional."""
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_JOB_ID_RULE = "1 to 255 letters, digits and ._:-, starting with a letter or digit"


@dataclass(frozen=True, kw_only=True)
class JobArguments:
    """The arguments of `ZeusBSOCallback` that define the job; an invalid one is an error."""

    target_metric: float | None = None
    baseline_runs: int | None = None
    monitor: str | None
    mode: Mode | None
    job_id: str | None
    batch_sizes: list[int] | None
    default_batch_size: int | None
    batch_size_scope: sizes.Scope | None = None
    batch_arg_name: str | None = None
    max_epochs: int | None
    eta_knob: float | None
    beta_knob: float | None
    policy: str | PolicyOptions | None
    lr_scaling: LRScaling | None = None

    def __post_init__(self) -> None:
        self._check("job_id", _is_job_id, _JOB_ID_RULE)
        if self.batch_sizes is not None:
            sizes.positive_sizes(self.batch_sizes)
        self._check("default_batch_size", sizes.is_size, "a positive integer")
        if self.default_batch_size is not None and self.batch_sizes is not None:
            _check_default(self.default_batch_size, self.batch_sizes)
        for name in ("target_metric", "eta_knob", "beta_knob"):
            self._check(name, lambda value: _is_number(value, Real), "a number")
        for name in ("max_epochs", "baseline_runs"):
            self._check(name, lambda value: _is_number(value, Integral), "an integer")
        self._check("baseline_runs", lambda runs: 2 <= runs <= 20, "2 to 20")
        bound = f"finite, at most {MAX_METRIC:g} in absolute value"
        self._check("target_metric", lambda target: abs(target) <= MAX_METRIC, bound)
        self._check("monitor", bool, "a metric's name")
        self._check("mode", ("min", "max").__contains__, "'min' or 'max'")
        rule = "the name of an attribute, with dots between nested ones"
        self._check("batch_arg_name", _is_attribute, rule)
        scopes = ("global", "per_device")
        self._check("batch_size_scope", scopes.__contains__, "'global' or 'per_device'")
        self._check("max_epochs", lambda epochs: epochs > 0, "positive")
        self._check("eta_knob", lambda eta: 0 <= eta <= 1, "in [0, 1]")
        self._check("beta_knob", lambda beta: beta > 0, "positive")
        self._check(
            "policy", lambda policy: isinstance(policy, str | dict), "a name or a dict of options"
        )
        self._policy_options()
        self._check("lr_scaling", ("linear", "sqrt").__contains__, "'linear', 'sqrt' or None")

    def _check(self, name: str, valid: Callable[[Any], object], rule: str) -> None:
        value = getattr(self, name)
        if not (value is None or valid(value)):
            raise ZeusConfigError(f"{name} is {value!r}; it must be {rule}")

    def _policy_options(self) -> dict[str, Any]:
        """The name and options of the policy that were given, as fields of the job."""
        given: dict[str, Any] = dict(self.policy) if isinstance(self.policy, dict) else {}
        name = given.pop("name", None) if isinstance(self.policy, dict) else self.policy
        if name is not None and not (isinstance(name, str) and name):
            raise ZeusConfigError(f"the policy's name is {name!r}; it must be a non-empty string")
        for option, value in given.items():
            if option not in _POLICY_OPTIONS:
                raise ZeusConfigError(
                    f"policy has the unknown option {option!r}; use one of name, "
                    f"{', '.join(_POLICY_OPTIONS)}"
                )
            if not _is_number(value, Integral):
                raise ZeusConfigError(f"the policy's {option} is {value!r}; it must be an integer")
        options: dict[str, Any] = {} if name is None else {"policy": name}
        return options | {option: int(value) for option, value in given.items()}

    def job(self, trainer: Trainer, module: LightningModule) -> JobSpec:
        """Make the job of these arguments and a program; an error if they do not fit."""
        max_epochs = self.max_epochs or trainer.max_epochs or 0
        if max_epochs < 1:
            max_epochs = trainer.max_steps  # an epoch has at least one step
        share = sizes.share(trainer, self.batch_size_scope)
        attribute = self.batch_arg_name or sizes.size_attribute(trainer)
        default = sizes.default_batch_size(
            trainer, module, attribute, share, self.default_batch_size
        )
        monitor, mode = monitor_of(trainer, self.monitor, self.mode)
        if monitor is not None and self.monitor is None:
            rank_zero_info(
                f"zeus: monitoring {monitor!r} (mode={mode!r}), as the Trainer's callbacks do"
            )
        name = default_job_id(module)
        if self.job_id is None and "ZEUS_JOB_ID" not in os.environ:
            rank_zero_info(
                f"zeus: the job is {name!r}, named after its folder, script and module; set "
                "$ZEUS_JOB_ID or pass job_id=... to name it"
            )
        return self.spec(name, default, max_epochs, share, monitor, mode)

    def spec(
        self,
        name: str,
        default: int,
        max_epochs: int,
        share: int,
        monitor: str | None,
        mode: Mode | None,
    ) -> JobSpec:
        """Make the job of these arguments.

        Args:
            name: Its id, if neither the arguments nor `$ZEUS_JOB_ID` give one.
            default: Its default batch size.
            max_epochs: Epochs after which a batch size has failed; below 1: only a registered job
                has a limit.
            share: What each batch size is divided by, such as the number of devices.
            monitor: The metric; None: only a registered job has one.
            mode: Whether it rises or falls to the target; None: only a registered job says so.

        Raises:
            ZeusConfigError: The id is invalid, or a batch size cannot be divided.
        """
        if monitor is not None and mode_of_name(monitor) not in (None, mode):
            rank_zero_warn(
                f"zeus: mode is {mode!r}, but {monitor!r} looks like a metric that should "
                f"{'fall' if mode == 'max' else 'rise'}; if so, pass mode={mode_of_name(monitor)!r}"
            )
        job_id = self.job_id or os.environ.get("ZEUS_JOB_ID") or name
        if not _is_job_id(job_id):
            source = "job_id or $ZEUS_JOB_ID"
            raise ZeusConfigError(f"{source} is {job_id!r}; it must be {_JOB_ID_RULE}")
        chosen = sizes.default_sizes(default, share)
        if self.batch_sizes is not None:
            chosen = sizes.positive_sizes(self.batch_sizes)
        default = operator.index(default)
        sizes.check_shares([*chosen, default], share)
        _check_default(default, chosen)
        given: dict[str, Any] = self._policy_options()
        if self.eta_knob is not None:
            given["eta_knob"] = shortest_decimal(self.eta_knob)
        if self.beta_knob is not None:
            beta = shortest_decimal(self.beta_knob)
            given["beta_knob"] = beta if math.isfinite(beta) else None
        if self.target_metric is not None:
            given["target_metric"] = shortest_decimal(self.target_metric)
        if self.baseline_runs is not None:
            given["baseline_runs"] = int(self.baseline_runs)
        if self.batch_size_scope is not None:
            given["batch_size_scope"] = self.batch_size_scope
        unknown = ["monitor"] if monitor is None else []
        unknown += ["higher_is_better"] if mode is None else []
        unknown += ["max_epochs"] if max_epochs < 1 else []
        return JobSpec(
            job_id=job_id,
            batch_sizes=chosen,
            default_batch_size=default,
            higher_is_better=mode == "max",
            monitor=monitor or "",
            max_epochs=min(int(max_epochs), MAX_INTEGER),
            suggested=[
                field
                for name, field in READ_FROM_PROGRAM.items()
                if getattr(self, name) is None and field not in unknown
            ],
            omitted=[*unknown, *(name for name in _OMITTED if name not in given)],
            **given,
        )


def no_max_epochs(trainer: Trainer) -> ZeusConfigError:
    """The error of a program whose training has no end, if the registered job has none either."""
    return ZeusConfigError(
        f"the Trainer's max_epochs is {trainer.max_epochs} and its max_steps {trainer.max_steps}, "
        "so a run that never reaches its target would never end; pass max_epochs=... to the "
        "Trainer or this callback"
    )


def default_job_id(module: LightningModule) -> str:
    """The id of a job that is not named: folder, script and module class, as `ranker-train-Net`.

    Where the script is an installed one, as in Ray's workers, the file of the class replaces it.
    Without a script, as in a notebook, the folder is the working directory. A folder named `src` is
    replaced by its parent.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is not None and _is_installed(Path(script)):
        script = _source_file(type(module))
    if script is not None and Path(script).exists():  # runpy may leave it relative
        script = str(Path(script).absolute())
    folder = Path.cwd() if script is None else Path(script).parent
    folder = folder.parent if folder.name == "src" else folder
    stem = [] if script is None else [Path(script).stem]
    name = "-".join([folder.name, *stem, type(module).__name__])
    return re.sub(r"[^A-Za-z0-9._:-]+", "-", name).lstrip("._:-")[-255:]


def _is_installed(script: Path) -> bool:
    """Whether it is a command, a library's, or of Python itself, as under cProfile."""
    is_known = script.parent in (Path(sysconfig.get_path(name)) for name in ("scripts", "stdlib"))
    return is_known or not {"site-packages", "dist-packages"}.isdisjoint(script.parts)


def _source_file(cls: type) -> str:
    """The file that defines a class, which may have been sent from another process's `__main__`."""
    functions = (each for base in cls.__mro__ for each in vars(base).values() if isfunction(each))
    return str(next(unwrap(each).__code__.co_filename for each in functions))


def _is_job_id(value: object) -> bool:
    return isinstance(value, str) and _JOB_ID.fullmatch(value) is not None


def _is_attribute(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_default(default: int, batch_sizes: list[int]) -> None:
    if default not in batch_sizes:
        raise ZeusConfigError(
            f"the default batch size {default} is not among batch_sizes {batch_sizes}; "
            "add it, or pass another default_batch_size=..."
        )
