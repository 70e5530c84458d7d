"""What a search for a power limit is told, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from zeus_lightning.client import BSOClient, plain_token
from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.power.profile import PowerProfile
from zeus_lightning.power.profiler import ProfilerSettings
from zeus_lightning.power.search import SearchName
from zeus_lightning.power.selectors import Selector, ZeusCost, parse_selector
from zeus_lightning.zeusd import find_zeusd

if TYPE_CHECKING:
    from jsonargparse.typing import SecretStr


@dataclass(frozen=True, kw_only=True)
class PowerOptions(ProfilerSettings):
    """The arguments of `ZeusPowerLimitCallback`, which describes them."""

    selector: Selector = field(default_factory=ZeusCost)
    search: SearchName = "information"
    profile_path: Path | None = None
    url: str | None = None
    job_id: str | None = None
    token: str | None = None
    apply: bool = True
    on_no_gpu: Literal["warn", "error"] = "warn"
    on_no_permission: Literal["raise", "observe"] = "raise"
    meter: str | EnergyMeter = "nvml"
    zeusd: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        choices = {
            "search": ("information", "sweep"),
            "on_no_gpu": ("warn", "error"),
            "on_no_permission": ("raise", "observe"),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ZeusConfigError(f"{name} is {value!r}; it must be {' or '.join(allowed)}")
        if self.url is not None:
            BSOClient(self.url, self.token)
        if self.zeusd is not None:
            find_zeusd(self.zeusd)


class PowerArguments(TypedDict, total=False):
    """The same as a program passes them; what is missing has `ZeusPowerLimitCallback`'s default."""

    selector: str | Selector
    search: SearchName
    step_w: int
    wait_steps: int
    warmup_steps: int
    profile_steps: int
    min_seconds: float
    profile_path: str | Path | None
    url: str | None
    job_id: str | None
    token: SecretStr | str | None
    apply: bool
    on_no_gpu: Literal["warn", "error"]
    on_no_permission: Literal["raise", "observe"]
    meter: str | EnergyMeter
    zeusd: str | None


def read_arguments(arguments: PowerArguments) -> PowerOptions:
    """Check arguments; an invalid one raises a `ZeusConfigError`, an unknown one a `TypeError`."""
    options: dict[str, Any] = dict(arguments)
    if unknown := sorted(options.keys() - PowerArguments.__annotations__.keys()):
        raise TypeError(f"PowerLimit has no argument {unknown[0]!r}")
    if "selector" in options:
        options["selector"] = parse_selector(options["selector"])
    if options.get("profile_path") is not None:
        options["profile_path"] = Path(options["profile_path"])
    options["token"] = plain_token(options.get("token"))
    return PowerOptions(**options)


@dataclass
class PowerResult:
    """The results: the attributes of `ZeusPowerLimitCallback` of these names."""

    profiled: bool = False
    profile: PowerProfile | None = None
    limit_w: int | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, for `PowerFit.resume`: the profile, in plain values."""
        return {} if self.profile is None else {"profile": self.profile.to_json()}
