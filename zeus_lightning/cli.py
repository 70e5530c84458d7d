"""`zeus-lightning`: what this machine can do, power limits put back, power profiles drawn."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pynvml
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusError, ZeusPowerError
from zeus_lightning.meters.nvml import NvmlMeter
from zeus_lightning.meters.rapl import RaplMeter
from zeus_lightning.power import plot, report
from zeus_lightning.power.limits import PowerLimit
from zeus_lightning.power.loan import check_free, records_folder, settle_all
from zeus_lightning.power.profile import PowerProfile
from zeus_lightning.version import __version__

Finding = tuple[str, str, bool | None, str]
"""What was looked at, on what; whether it works (None: there is none, or nobody asked), details."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status."""
    options = _parser().parse_args(arguments)
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zeus-lightning", description="Energy meters and power limits of this machine."
    )
    parser.add_argument("--version", action="version", version=f"zeus-lightning {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser(
        "doctor",
        help="show what works here",
        description="Show what works here: driver, GPUs, energy counters, power limits, RAPL, and "
        "the service. Nothing is changed: whether limits can be set is tried by setting the one in "
        "force again. Exit status 1 where training with the given options would fail.",
    )
    command.add_argument(
        "--meter",
        default="auto",
        metavar="METER",
        help="the callbacks' meter=...: auto (default), nvml, nvml:0,1, rapl or cpu-estimate",
    )
    command.add_argument(
        "--power-limit",
        action="store_true",
        help="training sets power limits, with ZeusPowerLimitCallback",
    )
    command.add_argument(
        "--url", help="the service; default: $ZEUS_SERVER_URL, and none if that is not set"
    )
    command.set_defaults(run=doctor)

    command = commands.add_parser(
        "reset-power-limits",
        help="put back what a killed run left behind",
        description="Put the power limits back that a killed run had set. Limits that someone else "
        "has set since, and those of runs that go on, are left. Exit status 1 where something is "
        "left to do.",
    )
    command.set_defaults(run=reset_power_limits)

    command = commands.add_parser(
        "power-profile",
        help="show or draw a power profile",
        description="Show a power profile, the JSON file at ZeusPowerLimitCallback's profile_path.",
    )
    command.add_argument("file", type=Path, metavar="FILE")
    command.add_argument(
        "--plot", type=Path, metavar="OUT.html", help="draw it, as a page that works offline"
    )
    command.set_defaults(run=power_profile)
    return parser


# --- doctor --------------------------------------------------------------------------------------


def doctor(options: argparse.Namespace) -> int:
    """Show what works here; 1 where training with the options would fail."""
    table = Table("", "on", "works", "details", box=box.SIMPLE_HEAD)
    failed = False
    for what, where, works, details in _findings(options):
        failed |= works is False
        shown = {True: "yes", False: "[bold red]no[/]", None: "-"}[works]
        table.add_row(what, escape(where), shown, escape(details))
    console = Console()
    console.print(table)
    console.print(
        "Training with these options would fail: see the rows that say no."
        if failed
        else "Training with these options can start."
    )
    return int(failed)


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    """Each thing that was looked at. What training needs not is told, but never fails."""
    kind, _, named = options.meter.partition(":")
    needs_gpus = kind == "nvml" or options.power_limit
    yield from _gpu_findings(
        [gpu.strip() for gpu in named.split(",")] if kind == "nvml" and named else None,
        needed=needs_gpus,
        set_limits=options.power_limit,
    )
    yield _rapl_finding(needed=kind == "rapl")
    if kind not in ("auto", "nvml", "rapl", "cpu-estimate"):
        yield ("meter", options.meter, False, "not one of auto, nvml, nvml:0,1, rapl, cpu-estimate")
    yield _service_finding(options.url or os.environ.get("ZEUS_SERVER_URL"))


def _gpu_findings(named: list[str] | None, *, needed: bool, set_limits: bool) -> Iterator[Finding]:
    """The driver, and each GPU, of which those named are needed; None: all of them."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield ("driver", "host", False if needed else None, f"no NVIDIA driver: {error}")
        return
    try:
        driver, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
        yield ("driver", "host", True, f"NVIDIA {driver}, {count} GPU{'s' * (count != 1)}")
        if needed and count == 0:
            yield ("GPU", "host", False, "the driver has no GPU; a container needs `--gpus all`")
        for index in range(count):
            yield from _of_gpu(index, named, needed=needed, set_limits=set_limits)
        for gpu in named or ():
            if not _exists(gpu):
                yield ("GPU", gpu, False, "no such GPU; `nvidia-smi -L` lists them")
    except pynvml.NVMLError as error:
        yield ("driver", "host", False if needed else None, f"it does not answer: {error}")
    finally:
        pynvml.nvmlShutdown()


def _of_gpu(
    index: int, named: list[str] | None, *, needed: bool, set_limits: bool
) -> Iterator[Finding]:
    where = f"GPU {index}"
    is_named = named is None or str(index) in named
    try:
        uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
        is_named |= named is not None and uuid in named
        meter = NvmlMeter([index])
    except (pynvml.NVMLError, ZeusError) as error:
        yield ("energy", where, False if needed and is_named else None, str(error))
        return
    yield ("GPU", where, True, f"{meter.device_model}, {uuid}")
    meter.close()
    yield ("energy", where, True, _energy_source(index))
    try:
        limit = PowerLimit(index)
    except ZeusPowerError as error:  # training goes on without
        yield ("power limit", where, None, error.message)
        return
    try:
        range_w = f"{limit.min_w} to {limit.max_w} W, now {limit.read_mw() / 1000:g} W"
        yield ("power limit", where, True, range_w)
        yield _permission(limit, where, needed=needed and is_named and set_limits)
    except ZeusPowerError as error:
        yield ("power limit", where, None, error.message)
    finally:
        limit.close()


def _energy_source(index: int) -> str:
    try:
        pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError:
        return "power is sampled: this GPU has no energy counter"
    return "counted by the GPU"


def _permission(limit: PowerLimit, where: str, *, needed: bool) -> Finding:
    try:
        limit.check_permission()
        left_behind = check_free(limit.uuid)
    except ZeusPowerError as error:
        fails = needed and error.fields["why"] != "no_power_control"
        return ("permission", where, False if fails else None, error.message)
    told = "to set it: yes, tried with the limit in force"
    if left_behind:
        told += "; a killed run left a limit behind: `zeus-lightning reset-power-limits`"
    return ("permission", where, True, told)


def _exists(gpu: str) -> bool:
    try:
        if gpu.isdecimal():
            pynvml.nvmlDeviceGetHandleByIndex(int(gpu))
        else:
            pynvml.nvmlDeviceGetHandleByUUID(gpu)
    except pynvml.NVMLError:
        return False
    return True


def _rapl_finding(*, needed: bool) -> Finding:
    try:
        meter = RaplMeter()
    except ZeusError as error:
        return ("RAPL", "host", False if needed else None, error.message)
    meter.close()
    return ("RAPL", "host", True, ", ".join(meter.devices))


def _service_finding(url: str | None) -> Finding:
    if not url:
        return ("service", "-", None, "none given: --url, or $ZEUS_SERVER_URL")
    try:
        version = BSOClient(url).server_version()
    except ZeusError as error:
        return ("service", url, False, error.message)
    return ("service", url, True, f"zeus-service {version}")


# --- the other commands --------------------------------------------------------------------------


def reset_power_limits(options: argparse.Namespace) -> int:
    """Put back what killed runs left behind; 1 where something is left to do."""
    del options
    status = 0
    for uuid, settled, told in settle_all():
        print(told if settled else f"GPU {uuid}: {told}")
        status |= not settled
    if status == 0:
        print(f"Nothing is left to put back (looked in {records_folder()}).")
    return int(status)


def power_profile(options: argparse.Namespace) -> int:
    """Show a power profile, and draw it."""
    try:
        profile = PowerProfile.loads(options.file.read_bytes())
        page = None if options.plot is None else plot.page(profile)
        print(
            f"{profile.num_devices} x {profile.device_model} (driver {profile.driver}), batch size "
            f"{profile.batch_size}, measured {profile.measured_at} by {profile.search}"
        )
        print(report.table(profile.points, profile.chosen_w, profile.selector, plot.cost(profile)))
        if page is not None:
            options.plot.write_text(page)
            print(f"Drawn in {options.plot}.")
    except OSError as error:  # which names the file
        print(f"zeus-lightning: {error}", file=sys.stderr)
        return 1
    except ZeusError as error:
        print(f"zeus-lightning: {options.file}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
