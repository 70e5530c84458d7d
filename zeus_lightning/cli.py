"""`zeus-lightning`: check this machine, restore power limits, launch runs."""

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import click
import pynvml
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zeus_lightning.client import BSOClient, without_user
from zeus_lightning.errors import ZeusError, ZeusMeterError, ZeusPowerError
from zeus_lightning.meters import amd, open_host_meter, open_meter
from zeus_lightning.meters.nvml import GpuMeter, NvmlMeter
from zeus_lightning.power.limits import GpuLimit
from zeus_lightning.power.restore import check_settable, records_folder, restore_all
from zeus_lightning.recur.command import recur
from zeus_lightning.recur.exec import exec_command
from zeus_lightning.version import __version__
from zeus_lightning.zeusd import Zeusd, find_zeusd


class Finding(NamedTuple):
    """What was checked, on what, whether it works, details, and whether training needs it."""

    what: str
    where: str
    works: bool
    details: str
    needed: bool = True


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="zeus-lightning")
def main() -> None:
    """Check meters and power limits on this machine, and launch recurring runs."""


main.add_command(recur)
main.add_command(exec_command)


@main.command()
@click.option(
    "--meter",
    default="auto",
    show_default=True,
    help="Meter to check, as in the callbacks' meter=..., e.g. nvml:0,1.",
)
@click.option("--power-limit", is_flag=True, help="Fail if this user may not set power limits.")
@click.option("--url", envvar="ZEUS_SERVER_URL", show_envvar=True, help="URL of the service.")
def doctor(meter: str, power_limit: bool, url: str | None) -> None:
    """Check this machine's GPUs, energy counters, power limits, zeusd and the service.

    Exits with 1 if training with these options would fail. The test of power limits sets the
    current one again.
    """
    table = Table("", "on", "works", "details", box=box.SIMPLE_HEAD)
    failed = False
    for finding in _findings(meter, power_limit=power_limit, url=url):
        failed |= finding.needed and not finding.works
        missing = "[bold red]no[/]" if finding.needed else "-"
        works = "yes" if finding.works else missing
        table.add_row(finding.what, escape(finding.where), works, escape(finding.details))
    console = Console()
    console.print(table)
    outcome = "Checks failed: see the rows marked no." if failed else "All required checks passed."
    unchecked = "" if url else " No service was checked; pass --url to check one."
    console.print(f"{outcome}{unchecked}")
    sys.exit(failed)


@main.command()
def reset_power_limits() -> None:
    """Restore the power limits that killed runs changed.

    Limits that another program or a live run has set are left unchanged. Exits with 1 if a limit
    cannot be restored.
    """
    failed = False
    for uuid, finished, message in restore_all():
        click.echo(message if uuid in message else f"GPU {uuid}: {message}")
        failed |= not finished
    if not failed:
        click.echo(f"Nothing is left to restore (looked in {records_folder()}).")
    sys.exit(failed)


def _findings(meter: str, *, power_limit: bool, url: str | None) -> Iterator[Finding]:
    gpus = meter.partition("+")[0]
    kind, _, listed = gpus.partition(":")
    named = [gpu.strip() for gpu in listed.split(",")] if listed else None
    zeusd, finding = _zeusd(needed=power_limit)
    yield finding
    nvidia, finding = _nvidia()
    yield finding._replace(needed=power_limit and kind != "amd")
    amds = _count_amd()
    if amds:
        yield Finding("driver", "AMD", True, f"AMD SMI, {amds} GPU{'s' * (amds != 1)}")
    for meter_class, count in ((NvmlMeter, nvidia), (amd.AmdMeter, amds)):
        for index in range(count):
            is_set = power_limit and (meter_class is amd.AmdMeter) == (kind == "amd")
            yield from _one_gpu(index, meter_class, named, zeusd, set_limits=is_set)
    if kind in ("nvml", "amd") and named is None:  # training chooses among all of them
        count = nvidia if kind == "nvml" else amds
        indices = ",".join(map(str, range(count or 1)))
        meter_of_all = f"{kind}:{indices}{meter.removeprefix(kind)}"
        yield _meter(meter, meter_of_all, has_nvidia=bool(nvidia))
    else:
        yield _meter(meter, meter, has_nvidia=bool(nvidia))
    if url:
        yield _service(url)
    else:
        yield Finding("service", "-", False, "not set: --url or $ZEUS_SERVER_URL", False)


def _zeusd(*, needed: bool) -> tuple[Zeusd | None, Finding]:
    try:
        zeusd = find_zeusd()
    except ZeusError as error:
        return None, Finding("zeusd", "-", False, error.message, needed)
    if zeusd is None:
        none = "not set: $ZEUSD_SOCK_PATH, or $ZEUSD_HOST_PORT and $ZEUSD_TOKEN"
        return None, Finding("zeusd", "-", False, none, False)
    try:
        allowed = ", ".join(zeusd.api_groups())
    except ZeusPowerError as error:
        return zeusd, Finding("zeusd", zeusd.address, False, error.message, needed)
    return zeusd, Finding("zeusd", zeusd.address, True, f"allows {allowed or 'nothing'}")


def _nvidia() -> tuple[int, Finding]:
    """The number of NVIDIA GPUs, and what is said of their driver."""
    try:
        pynvml.nvmlInit()
        try:
            driver, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        details = f"no NVIDIA driver ({error}); a container needs `--gpus all`"
        return 0, Finding("driver", "NVIDIA", False, details)
    details = f"NVIDIA {driver}, {count} GPU{'s' * (count != 1)}"
    return count, Finding("driver", "NVIDIA", count > 0, details)


def _count_amd() -> int:
    try:
        return len(amd.load().amdsmi_get_processor_handles())
    except Exception:  # noqa: BLE001 - any: the library may be missing
        return 0


def _one_gpu(
    index: int,
    meter_class: type[GpuMeter],
    named: list[str] | None,
    zeusd: Zeusd | None,
    *,
    set_limits: bool,
) -> Iterator[Finding]:
    """Check a GPU; limits are set on the named ones, or on all for None."""
    where = f"{'GPU' if meter_class is NvmlMeter else 'AMD'} {index}"
    try:
        with closing(meter_class([index])) as meter:
            (uuid,) = meter.devices
            counter = (
                "no energy counter, so power is sampled"
                if meter.samples
                else "has an energy counter"
            )
            yield Finding("GPU", where, True, f"{meter.device_model}, {uuid}: {counter}")
        with closing(GpuLimit(uuid, zeusd)) as limit:
            range_w = f"{limit.min_w} to {limit.max_w} W, now {limit.read_mw() / 1000:g} W"
            yield Finding("power limit", where, True, range_w)
            is_named = named is None or str(index) in named or uuid in named
            yield _permission(limit, where, needed=set_limits and is_named)
    except ZeusMeterError as error:  # the meter's row says whether it is needed
        yield Finding("GPU", where, False, error.message, needed=False)
    except ZeusPowerError as error:  # training continues without it
        yield Finding("power limit", where, False, error.message, needed=False)


def _permission(limit: GpuLimit, where: str, *, needed: bool) -> Finding:
    try:
        left_behind = check_settable(limit)
    except ZeusPowerError as error:
        fails = needed and error.fields["cause"] != "no_power_control"
        return Finding("permission", where, False, error.message, fails)
    how = "" if limit.zeusd is None else " through zeusd"
    details = f"can set limits{how} (tested with the current one)"
    if left_behind:
        details += "; a killed run left a limit behind: run `zeus-lightning reset-power-limits`"
    return Finding("permission", where, True, details)


def _meter(name: str, opened: str, *, has_nvidia: bool) -> Finding:
    """Whether a meter can be opened."""
    on_gpu = "nvml if training runs on a GPU, else " if has_nvidia else ""
    try:
        if name != "auto":
            with closing(open_meter(opened)) as meter:
                return Finding("meter", name, True, ", ".join(meter.devices))
        with closing(open_host_meter()) as meter:
            return Finding("meter", name, True, on_gpu + meter.name)
    except ZeusMeterError as error:
        if name == "auto":
            return Finding("meter", name, True, f"{on_gpu}cpu-estimate: {error.fact}")
        return Finding("meter", name, False, error.message)
    except ZeusError as error:
        return Finding("meter", name, False, error.message)


def _service(url: str) -> Finding:
    try:
        client = BSOClient(url)
        version = client.server_version()
        client.check_access()
    except ZeusError as error:
        return Finding("service", without_user(url), False, error.message)
    return Finding("service", url, True, f"zeus-service {version}")
