"""One recurring job on recorded runs, run by run: see the README beside this file."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from zeus_service.bandit.registry import DEFAULT_POLICY, POLICIES
from zeus_service.simulation import SimulationError, recorded_runs
from zeus_service.simulation.replay import replay

parser = ArgumentParser(description=__doc__)
parser.add_argument("--traces", type=Path, required=True, help="directory of the recorded runs")
parser.add_argument("--gpu", default="v100")
parser.add_argument("--workload", default="librispeech", choices=list(recorded_runs.RECIPES))
parser.add_argument("--policy", default=DEFAULT_POLICY, choices=list(POLICIES))
parser.add_argument("--eta", type=float, default=0.5)
parser.add_argument("--beta", type=float, default=2.0)
parser.add_argument("--seed", type=int, default=1)
arguments = parser.parse_args()

try:
    workload = recorded_runs.read(
        arguments.traces, arguments.gpu, recorded_runs.RECIPES[arguments.workload]
    )
except SimulationError as error:
    parser.error(str(error))
job = workload.spec(
    policy=arguments.policy,
    seed=arguments.seed,
    eta_knob=arguments.eta,
    beta_knob=arguments.beta,
)
spent = 0.0
for trial in replay(workload, job, workload.horizon):
    spent += trial.cost
    print(
        f"recurrence {trial.recurrence + 1:3}: batch size {trial.batch_size:4} "
        f"at {trial.power_limit_w:g} W ({trial.why}): {trial.result} after {trial.epochs} epochs, "
        f"{trial.time_s:,.0f} s, {trial.energy_j:,.0f} J"
    )
best = workload.oracle(arguments.eta)
oracle = workload.expected_cost(best, arguments.eta) * workload.horizon
print(f"{spent / oracle:.3f} times the cost of always choosing the best batch size, {best}")
