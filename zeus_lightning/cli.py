"""`zeus-lightning`: check this machine, restore power limits, show profiles, launch runs."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import click
import pynvml
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zeus_lightning.client import BSOClient, without_user
from zeus_lightning.errors import ZeusError, ZeusMeterError, ZeusPowerError
from zeus_lightning.meters import amd, open_host_meter
from zeus_lightning.meters.apple import AppleMeter
from zeus_lightning.meters.cpu_estimate import WATTS_PER_CORE
from zeus_lightning.meters.gpu import GpuMeter
from zeus_lightning.meters.nvml import NvmlMeter, find_gpu, finds_gpu
from zeus_lightning.meters.rapl import open_rapl
from zeus_lightning.power import summary
from zeus_lightning.power.limits import GpuLimit, open_limit
from zeus_lightning.power.profile import PowerProfile
from zeus_lightning.power.restore import check_settable, records_folder, restore_all
from zeus_lightning.recur.command import recur
from zeus_lightning.recur.exec import exec_command
from zeus_lightning.version import __version__
from zeus_lightning.zeusd import Zeusd, ZeusdError, find_zeusd

_PATH = click.Path(path_type=Path)
_METERS = ("auto", "nvml", "nvml:0,1", "amd", "apple", "rapl", "nvml+rapl", "cpu-estimate")


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
    help=f"The callbacks' meter=...: {', '.join(_METERS)}.",
)
@click.option("--power-limit", is_flag=True, help="Training uses ZeusPowerLimitCallback.")
@click.option("--url", envvar="ZEUS_SERVER_URL", show_envvar=True, help="The service.")
def doctor(meter: str, power_limit: bool, url: str | None) -> None:
    """Show what works on this machine.

    This checks the driver, the GPUs with their energy counters and power limits, AMD SMI, Apple
    silicon, RAPL, Zeus's daemon ($ZEUSD_SOCK_PATH, or $ZEUSD_HOST_PORT), and the service. Nothing
    is changed: limits are tried by setting the current one again. Exit status 1 if training with
    the given options would fail, or could not set power limits.
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
    outcome = "do not work here: see the rows that say no" if failed else "work here"
    unchecked = "" if url else " No service was checked: pass --url."
    console.print(f"These options {outcome}.{unchecked}")
    sys.exit(failed)


@main.command()
def reset_power_limits() -> None:
    """Restore the power limits that a killed run had set.

    Limits that someone else has set since, or that a live run has set, stay as they are. Exit
    status 1 if a limit could not be restored.
    """
    failed = False
    for uuid, finished, message in restore_all():
        click.echo(message if finished else f"GPU {uuid}: {message}")
        failed |= not finished
    if not failed:
        click.echo(f"Nothing is left to restore (looked in {records_folder()}).")
    sys.exit(failed)


@main.command()
@click.argument("file", type=_PATH)
def power_profile(file: Path) -> None:
    """Show a power profile.

    FILE is the JSON file at ZeusPowerLimitCallback's profile_path.
    """
    try:
        profile = PowerProfile.loads(file.read_bytes())
        click.echo(
            f"{profile.num_devices} x {profile.device_model} (driver {profile.driver}), batch size "
            f"{profile.batch_size}, measured {profile.measured_at} by {profile.search}"
        )
        click.echo(summary.table(profile.points, profile.chosen_w, profile.selector, profile.cost))
    except OSError as error:  # its message names the file
        raise click.ClickException(str(error)) from error
    except ZeusError as error:
        raise click.ClickException(f"{file}: {error}") from error


def _findings(meter: str, *, power_limit: bool, url: str | None) -> Iterator[Finding]:
    gpus = meter.removesuffix("+rapl")
    kind, _, listed = gpus.partition(":")
    named = [gpu.strip() for gpu in listed.split(",")] if listed else None
    zeusd, finding = _zeusd(needed=power_limit)
    yield finding
    if finds_gpu():
        measured = kind == "nvml" or (power_limit and kind != "amd")
        yield from _gpu_findings(named, zeusd, needed=measured, set_limits=power_limit)
    else:
        details = "no NVIDIA driver, or no GPU; a container needs `--gpus all`"
        yield Finding("driver", "host", False, details, needed=kind == "nvml")
        if power_limit and kind != "amd":
            idle = (
                "none is set without an NVIDIA GPU: ZeusPowerLimitCallback warns and does nothing"
            )
            yield Finding("power limit", "host", False, idle)
    yield from _amd_findings(named, zeusd, needed=kind == "amd", set_limits=power_limit)
    yield _apple(needed=kind == "apple")
    try:
        with closing(open_rapl(dram=gpus != meter)) as rapl:
            how = "" if rapl.zeusd is None else ", read through zeusd"
            yield Finding("RAPL", "host", True, ", ".join(rapl.devices) + how)
    except ZeusError as error:
        yield Finding("RAPL", "host", False, error.message, needed=meter.endswith("rapl"))
    yield Finding("cpu-estimate", "host", True, f"CPU time times {WATTS_PER_CORE} W per core")
    if kind == "auto":
        on_gpu = "nvml where training runs on a GPU, else " if finds_gpu() else ""
        try:
            with closing(open_host_meter()) as opened:
                yield Finding("meter", meter, True, on_gpu + opened.name)
        except ZeusMeterError:
            yield Finding("meter", meter, True, f"{on_gpu}cpu-estimate")
        except ZeusError as error:
            yield Finding("meter", meter, False, error.message)
    elif kind not in ("nvml", "amd", "apple", "rapl", "cpu-estimate"):
        yield Finding("meter", meter, False, f"not one of {', '.join(_METERS)}")
    if not url:
        yield Finding("service", "-", False, "none given: --url, or $ZEUS_SERVER_URL", False)
        return
    try:
        client = BSOClient(url)
        version = client.server_version()
        client.check_access()
        yield Finding("service", url, True, f"zeus-service {version}")
    except ZeusError as error:
        yield Finding("service", without_user(url), False, error.message)


def _zeusd(*, needed: bool) -> tuple[Zeusd | None, Finding]:
    try:
        zeusd = find_zeusd()
    except ZeusError as error:
        return None, Finding("zeusd", "-", False, error.message, needed)
    if zeusd is None:
        none = "none given: $ZEUSD_SOCK_PATH, or $ZEUSD_HOST_PORT and $ZEUSD_TOKEN"
        return None, Finding("zeusd", "-", False, none, False)
    try:
        allowed = ", ".join(zeusd.api_groups())
    except ZeusdError as error:
        return zeusd, Finding("zeusd", zeusd.address, False, str(error), needed)
    return zeusd, Finding("zeusd", zeusd.address, True, f"allows {allowed or 'nothing'}")


def _gpu_findings(
    named: list[str] | None, zeusd: Zeusd | None, *, needed: bool, set_limits: bool
) -> Iterator[Finding]:
    """Check the driver, and each GPU; of those needed, the named ones, or all for None."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield Finding("driver", "host", False, f"it does not work: {error}", needed)
        return
    try:
        driver, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
        yield Finding("driver", "host", True, f"NVIDIA {driver}, {count} GPU{'s' * (count != 1)}")
        for index in range(count):
            yield from _one_gpu(
                index, NvmlMeter, named, zeusd, needed=needed, set_limits=set_limits
            )
        for gpu in named or ():
            try:
                find_gpu(int(gpu) if gpu.isdecimal() else gpu)
            except pynvml.NVMLError:
                yield Finding("GPU", gpu, False, "no such GPU; `nvidia-smi -L` lists them")
    except pynvml.NVMLError as error:
        yield Finding("driver", "host", False, f"it does not answer: {error}", needed)
    finally:
        pynvml.nvmlShutdown()


def _amd_findings(
    named: list[str] | None, zeusd: Zeusd | None, *, needed: bool, set_limits: bool
) -> Iterator[Finding]:
    try:
        count = len(amd.load().amdsmi_get_processor_handles())
    except Exception as error:  # noqa: BLE001 - any: the library may be missing
        why = str(error) if needed else "no AMD SMI: ROCm, and `pip install 'zeus-lightning[amd]'`"
        yield Finding("AMD SMI", "host", False, why, needed)
        return
    yield Finding("AMD SMI", "host", True, f"{count} GPU{'s' * (count != 1)}")
    for index in range(count):
        yield from _one_gpu(index, amd.AmdMeter, named, zeusd, needed=needed, set_limits=set_limits)


def _apple(*, needed: bool) -> Finding:
    try:
        AppleMeter().close()
    except ZeusError as error:
        why = error.message if needed else "needs macOS, and `pip install 'zeus-lightning[apple]'`"
        return Finding("Apple silicon", "host", False, why, needed)
    return Finding("Apple silicon", "host", True, "counted by the chip")


def _one_gpu(
    index: int,
    meter_class: type[GpuMeter],
    named: list[str] | None,
    zeusd: Zeusd | None,
    *,
    needed: bool,
    set_limits: bool,
) -> Iterator[Finding]:
    is_nvidia = meter_class is NvmlMeter
    where = f"GPU {index}" if is_nvidia else f"AMD {index}"
    is_named = named is None or str(index) in named
    try:
        if is_nvidia:
            uuid = pynvml.nvmlDeviceGetUUID(find_gpu(index))
        else:
            uuid = amd.uuid_of(amd.find_gpu(index))
        is_named |= named is not None and uuid in named
        with closing(meter_class([index])) as meter:
            yield Finding("GPU", where, True, f"{meter.device_model}, {uuid}")
            sampled = "power is sampled: this GPU has no energy counter"
            yield Finding("energy", where, True, sampled if meter.samples else "counted by the GPU")
    except (pynvml.NVMLError, ZeusError) as error:
        yield Finding("energy", where, False, str(error), needed and is_named)
        return
    try:
        with closing(open_limit(uuid, zeusd)) as limit:
            range_w = f"{limit.min_w} to {limit.max_w} W, now {limit.read_mw() / 1000:g} W"
            yield Finding("power limit", where, True, range_w)
            yield _permission(limit, where, needed=needed and is_named and set_limits)
    except ZeusPowerError as error:  # training continues without it
        yield Finding("power limit", where, False, error.message, needed=False)


def _permission(limit: GpuLimit, where: str, *, needed: bool) -> Finding:
    try:
        left_behind = check_settable(limit)
    except ZeusPowerError as error:
        fails = needed and error.fields["cause"] != "no_power_control"
        return Finding("permission", where, False, error.message, fails)
    how = "" if limit.zeusd is None else " through zeusd"
    details = f"to set it{how}: yes, tried with the current limit"
    if left_behind:
        details += "; a killed run left a limit behind: `zeus-lightning reset-power-limits`"
    return Finding("permission", where, True, details)
