"""A power profile as a page with figures, which works offline."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from zeus_lightning.errors import ZeusError
from zeus_lightning.power.profile import PowerProfile
from zeus_lightning.power.selectors import PowerPoint, ZeusCost


def cost(profile: PowerProfile) -> Callable[[PowerPoint], float]:
    """What a batch costs by Zeus's cost, in joules, with the eta and MaxPower of the profile."""
    return partial(ZeusCost().cost, inputs=profile.inputs)


def page(profile: PowerProfile) -> str:
    """Energy, time and cost of a batch over the power limit, as HTML with all that it needs.

    Raises:
        ZeusError: plotly is not installed.
    """
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        raise ZeusError(
            "drawing needs plotly, which the extra `analysis` installs: "
            "pip install 'zeus-lightning[analysis]'"
        ) from None
    points = sorted(profile.points, key=lambda point: point.limit_w)
    limits_w = [point.limit_w for point in points]
    cost_of = cost(profile)
    curves = {
        "energy (J per batch)": [point.energy_j for point in points],
        "time (s per batch)": [point.time_s for point in points],
        f"cost (J per batch, eta {profile.eta_knob:g})": [cost_of(point) for point in points],
    }
    figure = make_subplots(rows=len(curves), shared_xaxes=True, vertical_spacing=0.04)
    for row, (name, values) in enumerate(curves.items(), 1):
        figure.add_scatter(
            x=limits_w, y=values, name=name, mode="lines+markers", row=row, col=1, showlegend=False
        )
        figure.update_yaxes(title_text=name, row=row, col=1)
    figure.add_vline(x=profile.chosen_w, line_dash="dash")
    figure.update_xaxes(title_text="power limit (W)", row=len(curves), col=1)
    figure.update_layout(
        title=f"{profile.num_devices} x {profile.device_model}, batch size {profile.batch_size}: "
        f"{profile.chosen_w} W chosen by {profile.selector}",
        height=900,
    )
    html: str = figure.to_html(include_plotlyjs=True)
    return html
